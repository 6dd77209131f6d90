"""Vectors and instructions of the processor in LLVM's terms, for the kernels of this package."""

from __future__ import annotations

from llvmlite import ir

__all__ = ["I64", "declared", "splat"]

I64 = ir.IntType(64)


def declared(module: ir.Module, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
    """Return an instruction of LLVM's by its name, declared once in a module.

    Args:
        module: Where it is declared.
        name: Its name.
        result: The type of its result.
        arguments: The types of its arguments.
    """
    if name in module.globals:
        return module.globals[name]
    return ir.Function(module, ir.FunctionType(result, arguments), name)


def splat(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    """Return a vector of ``count`` times the same value."""
    vector = ir.VectorType(value.type, count)
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I64, 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    return builder.shuffle_vector(one, nothing, mask)
