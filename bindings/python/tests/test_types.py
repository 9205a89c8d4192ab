"""The types that are written down are those that there are."""

import ast
import inspect
import pathlib

import elbowroom as er


def _public(body):
    for node in body:
        names = [node.target.id] if isinstance(node, ast.AnnAssign) else [getattr(node, "name", "_")]
        yield from ((name, node) for name in names if not name.startswith("_") or name == "__version__")


def test_the_stub_has_what_the_package_has():
    path = pathlib.Path(er.__file__).with_name("__init__.pyi")
    stub = dict(_public(ast.parse(path.read_text()).body))
    assert sorted(stub) == sorted(er.__all__)
    assert path.with_name("py.typed").exists()
    for name, node in stub.items():
        there = getattr(er, name)
        if isinstance(node, ast.ClassDef):
            assert inspect.isclass(there)
            missing = [inner for inner, _ in _public(node.body) if not hasattr(there, inner)]
            assert not missing
        elif isinstance(node, ast.FunctionDef):
            taken = list(inspect.signature(there).parameters)
            said = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
            assert [argument for argument in taken if not argument.startswith("_")] == said
