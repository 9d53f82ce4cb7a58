// The part of Standard Schema (https://standardschema.dev) that the client reads: zod, valibot, arktype and others have it.
import { TurnwiseError } from "./errors.js";

/** A schema that implements Standard Schema, version 1. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

export type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: ReadonlyArray<SchemaIssue> };

export interface SchemaIssue {
  readonly message: string;
  readonly path?: ReadonlyArray<PropertyKey | { readonly key: PropertyKey }> | undefined;
}

/** The type of what a schema takes. */
export type InputOf<S extends StandardSchema> = NonNullable<S["~standard"]["types"]>["input"];
/** The type of what a schema returns. */
export type OutputOf<S extends StandardSchema> = NonNullable<S["~standard"]["types"]>["output"];

/** How many problems a message shows. */
const SHOWN_ISSUES = 5;

/** Validates a value. */
export async function validate<Output>(schema: StandardSchema<unknown, Output>, value: unknown, what: string): Promise<Output> {
  return passed(await schema["~standard"].validate(value), what);
}

/** The value of a validation. The error names the places of the problems, and never the values. */
export function passed<Output>(result: SchemaResult<Output>, what: string): Output {
  if (!result.issues) return result.value;
  const shown = result.issues.slice(0, SHOWN_ISSUES).map((issue) => {
    const path = (issue.path ?? []).map((part) => String(typeof part === "object" ? part.key : part)).join(".");
    return path ? `${path}: ${issue.message}` : issue.message;
  });
  throw new TurnwiseError("invalid_input", `${what} is not valid: ${shown.join("; ")}`, "correct it");
}
