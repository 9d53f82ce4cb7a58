"""`AsyncClient` is `Client` with `await`: both are written out, so that editors and type checkers read them, and compared here."""

from __future__ import annotations

import ast
from pathlib import Path

import turnwise_client

FOLDER = Path(turnwise_client.__file__).parent
SYNCHRONOUS = {
    "AsyncClient": "Client",
    "AsyncHandle": "Handle",
    "AsyncIterator": "Iterator",
    "AsyncTransport": "Transport",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}


class WithoutAwait(ast.NodeTransformer):
    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        name = SYNCHRONOUS.get(node.name, node.name)
        fields = {field: value for field, value in ast.iter_fields(node) if field != "name"}
        return self.generic_visit(ast.FunctionDef(name=name, **fields))

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)  # type: ignore[no-any-return]

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        # Its name, as `repr` has it.
        value = node.value.replace("Async", "") if isinstance(node.value, str) else node.value
        return ast.Constant(value=value)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(id=SYNCHRONOUS.get(node.id, node.id), ctx=node.ctx)


def classes(module: str) -> dict[str, list[str]]:
    """The members of the classes of a module, each as text: its signature, its docstring and its body."""
    tree: ast.Module = WithoutAwait().visit(ast.parse((FOLDER / module).read_text()))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef)]

    def members(of: ast.ClassDef) -> list[str]:
        return [ast.unparse(ast.fix_missing_locations(member)) for member in of.body[1:]]

    return {SYNCHRONOUS.get(one.name, one.name): members(one) for one in found}


def test_the_clients_differ_in_await_alone() -> None:
    waiting, asynchronous = classes("client.py"), classes("aio.py")
    assert len(waiting["Client"]) > 25
    assert asynchronous == waiting
