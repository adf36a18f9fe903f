"""A calculator for models: arithmetic on exact numbers, read as a syntax tree and never run as a program.

    calculate("2*(3+4)^2")       # "98"
    calculate("1/3 + 1/6")       # "1/2 = 0.5"
    calculate("sqrt(2)")         # "1.4142135623730951"

Numbers, + - * / // % and ** or ^ for powers, the functions and constants named below. Whole numbers and fractions
stay exact; roots, logarithms and powers that are not whole become floating point. Size is limited: no expression
takes long or much memory.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

Number = int | float | Fraction

MAX_CHARACTERS = 300
MAX_BITS = 4_096
"""Of whole numbers, numerators and denominators: some 1,200 decimal digits."""

_MAX_FACTORIAL, _MAX_DECIMALS = 400, 100

_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class CalculatorError(ValueError):
    """An expression that is not arithmetic, or too large; the message is for the model that wrote it."""


def calculate(expression: str) -> str:
    """The value of an expression as text. Raises CalculatorError."""
    if len(expression) > MAX_CHARACTERS:
        raise CalculatorError(f"the expression is longer than {MAX_CHARACTERS} characters")
    text = expression.translate(_SIGNS).strip()
    try:
        tree = ast.parse(text, mode="eval")
        return _shown(_value(tree.body))
    except CalculatorError:
        raise
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise CalculatorError(f"cannot read {expression.strip()!r} as arithmetic") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise CalculatorError(str(error)) from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _quotient(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, args)))
    raise CalculatorError(f"{ast.unparse(node)!r} is not arithmetic that this calculator knows")


def _bounded(number: Any) -> Number:
    """The number, refused when it is complex or too large; a whole fraction becomes an integer."""
    if isinstance(number, Fraction):
        number = int(number) if number.denominator == 1 else number
    if not isinstance(number, int | float | Fraction):
        raise CalculatorError("the result is not a real number")
    if isinstance(number, float) and not math.isfinite(number):
        raise CalculatorError("the result is too large")
    if not isinstance(number, float):
        bits = max(number.numerator.bit_length(), number.denominator.bit_length())
        if bits > MAX_BITS:
            raise CalculatorError(f"a number of {bits} bits is too large")
    return number


def _quotient(a: Number, b: Number) -> Number:
    return _bounded(a / b if isinstance(a, float) or isinstance(b, float) else Fraction(a) / Fraction(b))


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, float) or not isinstance(exponent, int):
        return _bounded(float(base) ** float(exponent))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent) > 2 * MAX_BITS:
        raise CalculatorError("the power is too large")
    return _bounded(Fraction(base) ** exponent)


def _factorial(n: Number) -> Number:
    if not isinstance(n, int) or not 0 <= n <= _MAX_FACTORIAL:
        raise CalculatorError(f"factorial takes a whole number from 0 to {_MAX_FACTORIAL}")
    return math.factorial(n)


def _sqrt(number: Number) -> Number:
    """Exact where it is."""
    if isinstance(number, int) and number >= 0 and (root := math.isqrt(number)) ** 2 == number:
        return root
    return math.sqrt(number)


def _round(number: Any, decimals: Number = 0) -> Number:
    if not isinstance(decimals, int) or abs(decimals) > _MAX_DECIMALS:
        raise CalculatorError(f"round takes at most {_MAX_DECIMALS} decimals")
    rounded: Number = round(number, decimals)
    return rounded


def _shown(number: Number) -> str:
    if isinstance(number, Fraction):
        return f"{number} = {_as_float(number)!r}"
    return repr(number) if isinstance(number, float) else str(number)


def _as_float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        raise CalculatorError("the result is too large") from None


_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _sqrt,
    "abs": abs,
    "round": _round,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "gcd": math.gcd,
    "lcm": math.lcm,
    "factorial": _factorial,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}
