"""What a change of the source can change: all but what is there for the type checkers alone."""

from __future__ import annotations

import ast


class _WithoutTypes(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        """Forget which arguments have to be named: `*` in a signature is no multiplication."""
        self.generic_visit(node)
        named = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        defaults = [*node.defaults, *(default for default in node.kw_defaults if default is not None)]
        return ast.arguments([], named, node.vararg, [], [], node.kwarg, defaults)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Forget the attributes that are only declared, but for the fields of tuples and data classes."""
        self.generic_visit(node)
        fields = bool(node.decorator_list) or {*map(ast.unparse, node.bases)} & {"NamedTuple", "TypedDict"}
        if not fields:
            node.body = [
                ast.Pass() if isinstance(each, ast.AnnAssign) and each.value is None else each
                for each in node.body
            ]
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass() if ast.unparse(node.test).endswith(" is not None") else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if ast.unparse(node.value).startswith("assert_never(") else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        return ast.Pass() if ast.unparse(node.value).startswith("TypeVar(") else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Name("object", ast.Load())
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._without_types(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._without_types(node)

    def _without_types(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Forget what is returned, and the variables that are only declared."""
        for each in ast.walk(node):
            for name, inside in ast.iter_fields(each):
                if isinstance(inside, list) and not isinstance(each, ast.ClassDef):
                    setattr(each, name, [ast.Pass() if _is_declaration(one) else one for one in inside])
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return None
        self.generic_visit(node)
        return node


def _is_declaration(node: object) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is None


def meaning(source: str) -> str:
    """Return what of the source can be noticed when the program runs."""
    return ast.dump(_WithoutTypes().visit(ast.parse(source)))
