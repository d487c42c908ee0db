"""The pictures that code drew, for a model that reads images: a user's message, since tool messages hold only text."""

from __future__ import annotations

from collections.abc import Sequence

from agent_tools.agents.steps import CallDone
from agent_tools.messages import FIGURES, USER, ContentItem, Message
from agent_tools.models.base import Conversation
from agent_tools.phrases import language_of

_PHRASES = {"en": "(The figures that the code drew.)", "zh": "（代码绘制的图。）"}


def pictures_message(done: Sequence[CallDone], limit: int, messages: Conversation) -> tuple[Message, ...]:
    """Return a message with the first `limit` pictures of these calls; () if they drew nothing.

    The bytes are those that the kernel sent: the saved files lie where code can replace them.
    """
    pictures = [picture for each in done if each.execution for picture in each.execution.pictures][:limit]
    if not pictures:
        return ()
    phrase = _PHRASES[language_of(each for each in messages if isinstance(each, Message))]
    items = (ContentItem(text=phrase), *(ContentItem(image=picture.data_url) for picture in pictures))
    return (Message(USER, items, extra={FIGURES: len(pictures)}),)
