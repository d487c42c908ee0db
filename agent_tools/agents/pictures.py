"""What code drew, for a model that can see. Tool messages hold text only, so pictures come as a user's message."""

from __future__ import annotations

from collections.abc import Sequence

from agent_tools.agents.language import language_of
from agent_tools.agents.steps import CallDone
from agent_tools.messages import FIGURES, USER, ContentItem, Message
from agent_tools.models.base import Conversation

_PHRASES = {"en": "(The figures that the code drew.)", "zh": "（代码绘制的图。）"}


def pictures_message(done: Sequence[CallDone], limit: int, messages: Conversation) -> tuple[Message, ...]:
    """A message with the first `limit` pictures of these calls; none if there are none.

    The bytes are those the kernel sent: the files lie where code can swap them.
    """
    pictures = [picture for each in done if each.execution for picture in each.execution.pictures][:limit]
    if not pictures:
        return ()
    phrase = _PHRASES[language_of(each for each in messages if isinstance(each, Message))]
    items = (ContentItem(text=phrase), *(ContentItem(image=picture.data_url) for picture in pictures))
    return (Message(USER, items, extra={FIGURES: len(pictures)}),)
