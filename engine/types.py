"""What goes into the engine and what comes out: requests, outputs, status.

Values only. Nothing here knows tensors, blocks' contents, wires or text.
"""

from dataclasses import dataclass, field
from enum import Enum

from baton.naming import BlobName
from engine.masks import LogitMask


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when drawing stops; `engine/sampler.py` says exactly how."""

    temperature: float = 1.0
    """0 is greedy: the most probable token, ties to the lowest id."""
    top_k: int = 0
    """Keep the top_k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens with at least this much probability."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as probable as the most probable one."""
    seed: int = 0
    """Seed of the counter-based noise, 64 bits unsigned."""
    max_tokens: int = 16
    """Most output tokens, those of `Request.emitted` counted."""
    min_tokens: int = 0
    """Output tokens before an end or stop token may be drawn. A text that nothing can follow by
    `Request.mask` ends all the same."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the output besides the model's end tokens; part of the output."""
    ignore_eos: bool = False
    """The model's end tokens do not end the output; `stop_token_ids` still do."""
    logprobs: int | None = None
    """How many of the most probable tokens to report; None: no log probabilities at all."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the others, of tokens of prompt and output."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token of the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each time that it is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, none twice, and what is added to their logits, before all penalties."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that must not be in the output: a token that would complete one is
    not drawn. Matching begins in the output, never in the prompt."""
    prompt_logprobs: int | None = None
    """How many of the most probable tokens to report at each position of the prompt but the
    first, beside the prompt's own token; None: nothing is reported."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to compute."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    emitted: tuple[int, ...] = ()
    """Output tokens sampled before, here or elsewhere; they are not put out again."""
    choice: int = 0
    """Index of the choice; its noise is drawn with it."""
    choices: int = 1
    """How many choices to draw a first token for, with indices from `choice` on; more than one
    only with `hand_over_after` 1. See `SequenceOutput.first_tokens`."""
    salt: bytes = b""
    """Salt of the tenant's block names."""
    hand_over_after: int | None = None
    """End with HANDOVER after this many new tokens. None: go on to the end."""
    export: bool = False
    """Put out blocks for the transfer service, see `SequenceOutput.exports`."""
    priority: int = 0
    """Who is handed over first when blocks run out: the lowest. Nothing else hangs on it."""
    mask: LogitMask | None = field(default=None, compare=False)
    """Holds the output to a language, and has taken `emitted`; the sequence's own from `start`
    on. None: anything may follow."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and emitted tokens."""
        return self.prompt + self.emitted

    @property
    def reports_prompt(self) -> bool:
        """Whether log probabilities of the prompt are wanted, for which it is computed whole.

        A sequence that goes on from emitted tokens had them reported where it began.
        """
        return self.sampling.prompt_logprobs is not None and not self.emitted

    @property
    def new_tokens(self) -> int:
        """Most tokens that the engine may sample for this request."""
        left = self.sampling.max_tokens - len(self.emitted)
        return left if self.hand_over_after is None else min(left, self.hand_over_after)

    @property
    def life_tokens(self) -> int:
        """Most tokens of prompt and output that the sequence can have on this engine."""
        return len(self.prompt) + len(self.emitted) + self.new_tokens


class FinishReason(Enum):
    """Why a sequence left the engine. A cancelled one leaves without an output."""

    STOP = "stop"
    """An end or stop token, which is the last of the output; or nothing can follow by
    `Request.mask`, which may be known of the tokens emitted before."""
    LENGTH = "length"
    """max_tokens were sampled."""
    HANDOVER = "handover"
    """`hand_over_after` tokens were sampled, or `Engine.hand_over` was called; another engine
    goes on."""
    PREEMPTED = "preempted"
    """There are no blocks for it to grow into; it goes on elsewhere, or here later."""
    FAILED = "failed"
    """Its mask failed; `SequenceOutput.failure` says how."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token of the output, or of a prompt whose log probabilities are wanted."""

    token_id: int
    logprob: float | None = None
    """Natural log of the probability that the model gave it, before temperature and filters."""
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens with their log probabilities, most probable first."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of one choice."""

    choice: int
    token: SampledToken
    finish_reason: FinishReason | None
    """Set when the token ended the choice."""


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block of a sequence in one group's pool, to be copied from or into.

    `Engine.block_view(group, block)` are its bytes.
    """

    name: BlobName
    group: int
    index: int
    """Index of the block in its sequence."""
    block: int
    """Number of the block in the group's pool."""
    used_tokens: int
    """Slots that hold tokens, less than the block size in a tail only."""


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """What one step brought one sequence."""

    request_id: str
    tokens: tuple[SampledToken, ...]
    """Tokens sampled in this step, in order."""
    computed_tokens: int
    """Prompt tokens whose KV is there now."""
    exports: tuple[BlockRef, ...]
    """Blocks to publish; none twice over all of the sequence's outputs. Where the request asked
    for it:

    Full blocks of full-attention groups; of window groups those that a resume at a checkpoint
    or at the prompt's end needs; with HANDOVER the tail too. Blocks that came from a cache are
    among them (in the first output), so that the exports of all outputs together are what a
    resume at the prompt's end needs; leave out what the transfer service holds already.

    Asked for or not, of a sequence that leaves by `Engine.hand_over` or with PREEMPTED: what is
    still lacking so that all exports together are what a resume needs that computes nothing
    again; where the sequence stopped inside a prompt, nothing up to its last full block.

    Each is pinned, unchanged, until `Engine.release_exports`, also when the sequence has ended.
    """
    finish_reason: FinishReason | None
    """Set in a sequence's last output. Of several choices: HANDOVER if any goes on elsewhere."""
    first_tokens: tuple[FirstToken, ...] = ()
    """When the first token was sampled: that of each choice, by index. The first choice's is
    in `tokens` too."""
    prompt_logprobs: tuple[SampledToken, ...] = ()
    """When asked for: the prompt's own tokens whose logits this step brought, in order. Over
    all outputs those from the second one on; the last come with the first sampled token or
    before it. A sequence that is handed over before its first token begins them anew."""
    kv_tokens: int = 0
    """Tokens of prompt and output whose KV is there after the step; in a last output, those
    that the sequence had when it left. 0 if it was never started."""
    failure: Exception | None = None
    """With FAILED: what `Request.mask` raised."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that has room, and what its KV still lacks."""

    request_id: str
    cached_tokens: int
    """Tokens that need no computing if all of `missing` gets filled."""
    local_tokens: int
    """Tokens that need no computing if none of `missing` gets filled."""
    missing: tuple[BlockRef, ...]
    """Private blocks to fill from the transfer service before `Engine.start`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask of this engine."""

    context_tokens: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the engine can hold at once."""

    sequences: int
    kv_tokens: int
    """Tokens (prompt and most output, over all sequences) that fit for sure."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Blocks of one KV group; what is neither used nor cached is empty."""

    name: str
    total_blocks: int
    used_blocks: int
    """Blocks that sequences or exports hold."""
    cached_blocks: int
    """Blocks that no one holds and that keep named KV."""
    block_bytes: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the engine holds now and has done since it was made."""

    groups: tuple[GroupStatus, ...]
    running: int
    """Sequences started and not ended."""
    waiting: int
    """Sequences admitted and not started."""
    held_tokens: int
    """Tokens that blocks are set aside for now, over all sequences: `Request.life_tokens`, or
    less where `EngineConfig.growth_tokens` is set."""
    steps: int
    steps_by_batch_size: tuple[int, ...]
    """Element i counts steps of i sequences; the last element belongs to the most possible."""
    prefilled_tokens: int
    """Prompt tokens computed."""
    sampled_tokens: int
    cached_tokens: int
    """Prompt tokens that needed no computing."""
    preempted: int
    """Sequences that left with PREEMPTED."""
    handed_over: int
    """Sequences that left by `Engine.hand_over`."""
    context_tokens: int
    """Tokens in the contexts of the sequences that decode now."""
    prompt_tokens_left: int
    """Tokens that the other started sequences have to compute before they sample."""
