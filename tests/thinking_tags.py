"""Tokens around reasoning and at the end of a reply, as models of all kinds write them."""

from __future__ import annotations

PAIRS = (
    *(("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    *((f"<{name}>", f"</{name}>") for name in ("mm:think", "longcat_think", "thought", "thinking", "reasoning")),
    *(("<|open|>think<|sep|>", "<|close|>think<|sep|>"), ("<|think:start|>", "<|think:end|>")),
    *((" to=self<|message|>", "<|eom|>"), ("<|x:begin_think:x|>", "<|x:end_think:x|>")),
    *(("◁think▷", "◁/think▷"), ("<|START_THINKING|>", "<|END_THINKING|>"), ("<|inner_prefix|>", "<|inner_suffix|>")),
)
"""Opening and closing tokens."""

END_MARKS = (
    *("<|end|>", "<|return|>", "<|call|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>"),
    *("<|end_of_text|>", "<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>", "<|eot|>", "[e~[", "[EOS]", "<|user|>"),
    *("<|observation|>", "</s>", "<|hy_eos|>"),
    *("[unused10]", "</longcat_s>", "<|close|>message<|sep|>"),
)
"""Tokens with which models end a reply."""
