"""Code in plain text documents, found without markup, because prose does not parse as Python."""

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """A piece of code and the line of prose above it."""

    heading: str
    code: str


def code_blocks(text: str) -> list[Block]:
    """Return the code of a document, in order; pieces without prose between them are one block."""
    chunks = [chunk for chunk in re.split(r"\n[ \t]*\n", text.strip("\n")) if chunk.strip()]
    blocks: list[Block] = []
    heading, at = "", 0
    while at < len(chunks):
        end = next((end for end in range(len(chunks), at, -1) if _is_code("\n\n".join(chunks[at:end]))), at)
        if end == at:
            heading, at = chunks[at].strip().splitlines()[-1], at + 1
        else:
            blocks.append(Block(heading, "\n\n".join(chunks[at:end])))
            at = end
    return blocks


def _is_code(text: str) -> bool:
    try:
        tree = compile(text, "document", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return not any(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Name | ast.BinOp) for node in tree.body
    )
