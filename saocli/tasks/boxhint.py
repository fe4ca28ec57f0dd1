"""The sentence that asks for a box, for prompts whose grader looks for one."""

from __future__ import annotations

HINT = "Write the final answer, and nothing else, inside \\boxed{}."


def with_hint(prompt: str) -> str:
    """The prompt with the sentence at its end, unless it speaks of a box itself."""
    return prompt if "\\boxed" in prompt else f"{prompt.rstrip()}\n\n{HINT}"
