// Makes src/models.ts from docs/openapi.json: the types of requests and answers, with their descriptions.
import { readFileSync, writeFileSync } from "node:fs";

const description = new URL("../../../docs/openapi.json", import.meta.url);
const target = new URL("../src/models.ts", import.meta.url);
const schemas = JSON.parse(readFileSync(description, "utf8")).components.schemas;

/** The types that the client names. Those that they refer to follow by themselves. */
const ROOTS = [
  "Accepted", "AddJob", "AddJobs", "AddedJobs", "AskedLocks", "Cancelled", "EndRuns", "Error", "EventPage", "FiredSchedule", "Groups",
  "JobEvent", "Jobs", "LogPage", "NewLogLine", "Pinged", "Progress", "PutSchedule", "Register", "Registered", "Removed", "RemovedGroup",
  "RemovedSchedule", "Retried", "SchedulePreview", "Schedules", "Updated", "WaitAnswer", "WantedLock",
];
/** Names that would hide those of the language. */
const RENAMED = { Error: "ErrorBody", Event: "JobStep" };

const named = new Set();
const waiting = [...ROOTS];

function name(schema) {
  return RENAMED[schema] ?? schema;
}

function comment(schema, indent) {
  const text = schema.description?.replaceAll("*/", "*\\/").trim();
  return text ? `${indent}/** ${text.replaceAll(/\s*\n\s*/g, " ")} */\n` : "";
}

function type(schema, indent) {
  if (schema === true || schema === undefined) return "unknown";
  if (schema.$ref) {
    const referred = schema.$ref.split("/").at(-1);
    waiting.push(referred);
    return name(referred);
  }
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map((choice) => type(choice, indent)).join(" | ");
  if (schema.allOf) return schema.allOf.map((part) => type(part, indent)).join(" & ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.properties) return object(schema, indent);
  const types = [schema.type ?? []].flat();
  if (types.length === 0) return "unknown";
  return types.map((one) => plain(one, schema, indent)).join(" | ");
}

function plain(one, schema, indent) {
  switch (one) {
    case "integer":
    case "number":
      return "number";
    case "array":
      return `Array<${type(schema.items, indent)}>`;
    case "object": {
      const values = typeof schema.additionalProperties === "object" ? type(schema.additionalProperties, indent) : "unknown";
      return `Record<string, ${values}>`;
    }
    default:
      return one;
  }
}

function object(schema, indent) {
  const inner = `${indent}  `;
  const required = new Set(schema.required ?? []);
  const members = Object.entries(schema.properties).map(
    ([key, value]) => `${comment(value, inner)}${inner}${key}${required.has(key) ? ": " : "?: "}${type(value, inner)}${required.has(key) ? "" : " | undefined"};\n`,
  );
  const others = typeof schema.additionalProperties === "object";
  // The values of an index signature must allow those of the members.
  if (others) members.push(`${inner}[name: string]: ${type(schema.additionalProperties, inner)} | boolean | undefined;\n`);
  return `{\n${members.join("")}${indent}}`;
}

let text = "// Made from docs/openapi.json by scripts/models.mjs.\n";
for (let next; (next = waiting.shift()); ) {
  if (named.has(next)) continue;
  named.add(next);
  const schema = schemas[next];
  if (!schema) throw new Error(`docs/openapi.json has no schema ${next}`);
  text += `\n${comment(schema, "")}export type ${name(next)} = ${type(schema, "")};\n`;
}
writeFileSync(target, text);
