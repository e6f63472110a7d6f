"""Which prompts must not be read into the cache at the same time. Pure.

With prefix caching on, OpenVINO GenAI 2026.4 also restores blocks that are filled in part, and while prompts are being
read it writes behind the restored part without a copy: two prompts that restore the same such block overwrite each
other's tokens, and both go on with a mixture. (Two prompts of 47 and 50 tokens behind a cached one of 37: 14 of 16
outputs wrong in an idle cache.) A sequence that already generates is safe: it copies a shared block before it writes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]


def may_share_unfinished_block(one: TokenIds, other: TokenIds, block_tokens: int) -> bool:
    """Whether a partly filled block could be a prefix of both prompts.

    True when they part inside a block, and when one is a prefix of the other: its last token is always computed again,
    into whatever block it shares.
    """
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    common = int(differing[0]) if differing.size else shorter
    return common == shorter or common % block_tokens != 0
