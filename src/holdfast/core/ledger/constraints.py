"""The user's constraints, the decisions of user and model, and whether they still hold.

Cues identify them in sentences. Only the user can set a constraint, and only the user or the model can make a
decision; the output of a tool never does either. A later statement that contradicts an earlier one on the same subject
supersedes it. The user closes a constraint by saying that it is done. A constraint stays active in unclear cases.

A pasted mail, log or diff is the text of others, fenced or not, and states nothing for the user.

The cues cover English, German, Spanish, French and Chinese, and match sentences in lower case. A cue is a hint, not a
grammar: each list omits phrases that mostly have another meaning ("I don't know", "immer noch", "toujours pas", "ça ne
marche pas"). "Always" and "never" mostly describe facts. They are a cue if they open an order ("never touch"), or if
they follow a verb of obligation such as "must". They are no cue after "I", "it" or "they", or before a past tense.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, TypeAlias

from holdfast.core.ledger.actions import add_source
from holdfast.dataclass import dataclass
from holdfast.text import clip_to_line, lazy_pattern


def _any_pattern(*patterns: str) -> str:
    """Return a pattern that matches where one of the patterns does, tried only where one of them can begin.

    Most begin at the edge of a word or of the sentence. Those are tried together there, not one by one everywhere.
    """
    branches = [branch for pattern in patterns for branch in _branches(pattern)]
    edges = {edge: [one[len(edge) :] for one in branches if one.startswith(edge)] for edge in (r"\b", "^")}
    others = [one for one in branches if not one.startswith(tuple(edges))]
    return "|".join([*(f"{edge}(?:{'|'.join(found)})" for edge, found in edges.items() if found), *others])


def _branches(pattern: str) -> list[str]:
    """Return the alternatives of a pattern, without those inside its groups."""
    branches, depth, is_in_set = [""], 0, False
    for piece in re.findall(r"\\.|[^\\]", pattern):
        if piece == "|" and not depth and not is_in_set:
            branches.append("")
            continue
        branches[-1] += piece
        depth += 0 if is_in_set else (piece == "(") - (piece == ")")
        is_in_set = piece != "]" if is_in_set else piece == "["
    return branches


class Cue:
    """Patterns of a hint in a sentence, compiled at its first use: all of them would take longer than an import.

    `words` are such that each sentence in ASCII that matches has one of them. Most sentences have none, and looking for
    words takes a tenth of the time. Each such sentence contains one of the `phrases`, too; looking for them in a whole
    text takes less than dividing it into sentences.
    """

    def __init__(self, *patterns: str, words: str = "", phrases: Sequence[str] = ()) -> None:
        self._patterns = patterns
        self.words = frozenset(words.split())
        self._phrases = phrases

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        """Search a sentence in lower case for one of the patterns."""
        return re.compile(_any_pattern(*self._patterns)).search

    def may_match(self, words: Iterable[str] | None) -> bool:
        """Return whether a sentence of these words may match; None stands for a sentence that is not in ASCII."""
        return words is None or not self.words or not self.words.isdisjoint(words)

    def may_occur(self, text: str) -> bool:
        """Return whether a sentence of a text may match."""
        if not text.isascii():
            return True
        return any(map(text.lower().__contains__, self._phrases))


def matches_cue(cue: Cue, sentence: str) -> bool:
    """Return whether a sentence in lower case contains a cue."""
    return cue.search(sentence) is not None


def cue_words(text: str) -> list[str] | None:
    """Return the words of a sentence or a text in lower case, for `Cue.may_match`; None if it is not in ASCII."""
    return text.encode().translate(_SPACED).decode().split() if text.isascii() else None


_SPACED = bytes(byte if chr(byte).isalnum() or chr(byte) == "_" else ord(" ") for byte in range(128)).ljust(256)
"""Translates a text in ASCII into one that has white space between words; a pattern takes several times as long."""


_STARTS = "^", r"[,;:(–—-]\s*", r"\b(?:please|and|but|so|also|you|just|then|or)\s+"
_OTHERWISE = r"(?!know|think|see|understand|remember|worry|care|get\b|mean\b|recall|believe|you\b)"
_ORDERS = """
accept add allow answer apply ask assume call cast change check choose clear close commit compare compile contain copy
create cut delete deploy disable do document drop edit emit enable escape exceed expose fetch fix follow force format
forget generate guess handle hardcode hide ignore import include install invent invoke keep leave limit link list load
lock log make mention merge mix mock modify move name omit open overwrite pass pin print push put quote raise read
rebase rely remove rename render repeat replace reply report reset respond restart retry return reuse reveal review
rewrite round run sanitize save send set share show sign skip sort specify split squash start stop store strip suggest
switch test throw touch translate trust type update upgrade use validate verify wait wrap write
"""
"""Imperative verbs with which users instruct an agent."""
_OF_OTHERS = (
    "".join(rf"(?<!\b{word} )" for word in ("i", "it", "he", "she", "they", "that", "this", "who", "which"))
    + r"(?<!['’]ll )(?<!n['’]t )"
)
_EVER = r"(?:always|never(?:\s+ever)?)"
_ORDER = rf"\b{_OF_OTHERS}{_EVER}\s+(?:{'|'.join(_ORDERS.split())})\b"
# Not an order if a past tense, a third person or no verb follows: "never saw", "always fails", "always great".
_NO_ORDER = (
    r"(?!(?:saw|seen|had|was|were|been|knew|heard|got|did|mind|say|again|really|quite|very|just|good|great|nice|fun|full"
    r"|up|down|here|there|the|an?|so|too|easy|cool|special|give up)\b|(?!bring|ping|string)\w+ing\b"
    r"|(?!need|feed|speed|seed|embed|exceed|proceed|succeed)\w+ed\b|(?!focus|bias|alias)\w+[^s\W]s\b)"
)
_OPENING = "|".join(
    rf"{start}{_EVER}\s+{_NO_ORDER}\w+(?:\s+\w|[.!]?$)"
    for start in ("^", r"[,;:(–—]\s*", r"\b(?:please|and|but|so|then|or)\s+")
)
_DUTIES = r"must|should|shall|have to|has to|needs? to|ought to|may(?= never)|(?:are|is|supposed) to"
_DUTY = rf"\b(?<!\bi )(?:{_DUTIES})\s+{_EVER}\b"
_GERMAN = (
    r"^(?:bitte,? |dann |und )?(?:verwende|benutze|nutze|nimm|schreib|mach|prüf|teste|führ|lass|halt|gib|setz|lösch"
    r"|ändere?|füge?|frag|antworte|starte|behalte?|speichere?)\w*\b"
)
_SPANISH = (
    r"^(?:por favor,? )?(?:usa|utiliza|haz|pon|escribe|ejecuta|mantén|deja|comprueba|prueba|guarda|borra|añade"
    r"|responde|pregunta|no \w+)\b"
)
_FRENCH = (
    r"^(?:ne |n['’])?(?:utilise|garde|fais|mets|écris|lance|exécute|vérifie|teste|ajoute|supprime|modifie|touche"
    r"|réponds|demande|laisse|change|crée)\w*\b"
)
_IMMER, _NIE = r"immer\b(?! noch| wieder| mehr)", r"nie(?:mals)?\b"

_ORDER_PATTERNS = (
    _ORDER,
    _OPENING,
    _DUTY,
    rf"\bi {_EVER} (?:want|need|expect) (?:you|the|your|every|each|all)\b|\bunder no circumstances\b",
    rf"{_GERMAN}.*\b(?:{_IMMER}|{_NIE})|^(?:bitte )?(?:{_IMMER}|{_NIE})",
    rf"\b(?:soll(?:st|en|ten?)?|muss|musst|müssen|darf(?:st)?|dürfen|bitte)\b.*\b(?:{_IMMER}|{_NIE})",
    r"\b(?:auf keinen fall|keinesfalls)\b",
    rf"{_SPANISH}.*\b(?:siempre|nunca|jamás)\b|^(?:por favor,? )?(?:siempre|nunca|jamás)\b",
    rf"{_FRENCH}.*\b(?:toujours\b(?! pas)|jamais\b)|^(?:toujours|jamais)\b(?! pas)",
    r"\b(?:veuillez|merci de|s['’]il (?:te|vous) plaît|dois|devez)\b.*\b(?:toujours|jamais)\b",
    r"(?:^|[，,；;：:]|请|要|应该?|你|您|必须)(?:总是|始终|永远|从不)|绝不|绝对不",
)
ORDER_CUE = Cue(*_ORDER_PATTERNS)
"""The user says what to do always or never: the constraints that matter most and are stated once."""

CONSTRAINT_CUE = Cue(
    *_ORDER_PATTERNS,
    *(rf"{start}(?:do not|don['’]?t)\s+{_OTHERWISE}" for start in _STARTS),
    r"\bplease,?\s+keep\b",
    r"\b(?<!\bi )(?:must|mustn['’]?t|shall|should(?:n['’]?t)?\s+not)\b(?! have\b| be (?:an?|the|some)\b)",
    r"\b(?:make sure|be sure to|ensure|avoid|refrain from|stick (?:to|with)|from now on)\b",
    r"\b(?:i(?:['’]d)? (?:strongly )?prefer|prefer (?:to|using)|only (?:ever )?use|use only|no longer use)\b",
    r"^(?:please,? |and |also |then )?use\b|\bkeep in mind\b",
    *(
        rf"{start}(?:use|prefer|keep|leave) (?=.*\b(?:not|instead of|rather than|unchanged|as is|alone)\b)"
        for start in _STARTS
    ),
    r"\b(?:ab jetzt|ab sofort)\b",
    r"\b(?:darf(?:st)?|sollst|dürfen|bitte)\b.*\b(?:nicht|keine?n?)\b|\b(?:achte darauf|stelle? sicher)\b",
    r"\bnicht (?:verwenden|benutzen|ändern|anfassen|löschen)\b",
    r"\b(?:musst?|müssen|vermeide|bevorzuge|verwende|benutze|nutze|nimm)\b",
    r"\b(?:asegúrate|evita|prefiero|de ahora en adelante|a partir de ahora)\b",
    r"\b(?:debe[sn]?|tienes? que|hay que)\b|(?:^|[,;:]\s*|por favor,?\s+)(?:usa|utiliza|mantén)\b",
    r"\bno (?:uses|hagas|toques|cambies|modifiques|borres|crees|olvides|añadas|agregues|pongas|elimines|instales)\b",
    r"\b(?:assure-toi|assurez-vous|évite[rz]?|je préfère|préfère|désormais)\b",
    r"\b(?:il faut|tu dois|vous devez|doit|doivent)\b|(?:^|[,;:]\s*)(?:utilise[rz]?|garde[rz]?)\b",
    r"\bn(?:e |['’])(?:touche|modifie|change|utilise|supprime|fai[st]|crée|ajoute|met|renomme|oublie)\w*\b.*\bpas\b",
    r"不要|不得|禁止|必须|务必|一定要|请勿|避免|优先|尽量|只能|只用|从现在起|以后都",
    words="""
        always never not dont don keep must mustn mustnt shall sure ensure avoid refrain stick now prefer use mind
        circumstances leave immer nie niemals fall keinesfalls jetzt sofort nicht kein keine keinen keinn darauf
        sicher musst muss vermeide bevorzuge verwende benutze nutze nimm siempre nunca evita prefiero ahora debe
        debes deben que usa utiliza uses hagas toques cambies modifiques borres crees olvides agregues pongas elimines
        instales toujours jamais toi vous faut dois devez doit doivent utilise utiliser utilisez garde garder gardez pas
    """,
)
"""The user sets a constraint."""

DECISION_CUE = Cue(
    r"\blet['’]?s (?:use|go with|stick with|keep|switch|drop|stay with|adopt)\b|\bdecision:",
    r"\b(?:we|i)(?:['’]ve| have)? (?:decided|agreed|settled|chose|chosen|opted)\b|\bdecided (?:to|on|against)\b",
    r"\b(?:going|we['’]ll go|i['’]ll go) with\b",
    r"\b(?:entschieden|beschlossen)\b|\b(?:nehmen|verwenden|benutzen) wir\b|\bwir (?:nehmen|verwenden|bleiben)\b",
    r"\b(?:usemos|vamos a usar|vamos con|decid(?:imos|ido|í)|optamos|elegimos|hemos elegido)\b",
    r"\b(?:utilisons|on va utiliser|partons sur|on part sur|décidé|optons|avons choisi)\b",
    r"决定|我们用|就用|采用|选用|改用|我们选|就选",
    words="""
        let lets decision decided agreed settled chose chosen opted with entschieden beschlossen wir usemos usar vamos
        decidimos decidido optamos elegimos elegido utilisons utiliser sur optons choisi
    """,
    phrases=(
        *(f"{let} {verb}" for let in ("let's", "lets") for verb in ("use", "go", "st", "keep", "switch", "drop", "ad")),
        *("decision:", "decided", "agreed", "settled", "chose", "opted", "going with", "ll go with"),
        *("entschieden", "beschlossen", "en wir", "wir nehmen", "wir verwenden", "wir bleiben"),
        *("usemos", "vamos a usar", "vamos con", "decidi", "optamos", "elegimos", "hemos elegido"),
        *("utilisons", "on va utiliser", "partons sur", "on part sur", "optons", "avons choisi"),
    ),
)
"""The user or the model makes a decision."""

CHOICE_CUE = Cue(
    r"\b(?:we|i)(?:['’]ll|['’]m| will| are| am)? (?:use|using|go(?:ing)? with|switch(?:ing)? to|stick(?:ing)? with)\b",
    r"\bgo (?:with|for) (?:the|option|plan|approach|\w+ instead)\b",
    words="use using with to go",
)
"""A decision only if the user says it; a model uses the same phrases for every step it takes."""

REPLACEMENT_CUE = Cue(
    r"\b(?:actually|instead|rather|scratch that|on second thought|change of plan|no longer|any ?more)\b",
    r"\bswitch(?:ed|ing)? (?:from|to)\b|\b(?:forget|drop) (?:that|it|about|the)\b|\bchanged my mind\b",
    r"\b(?:stattdessen|doch lieber|doch nicht|anstatt|statt|nicht mehr)\b",
    r"\b(?:en su lugar|en lugar|en vez|mejor|ya no|pensándolo bien)\b",
    r"\b(?:plutôt|finalement|à la place|au lieu|ne plus|en fait)\b",
    r"改用|换成|而不是|还是用|不再|改为",
    words="""
        actually instead rather scratch second change longer any anymore switch switched switching forget drop mind
        stattdessen doch anstatt statt nicht en mejor ya bien finalement place lieu plus fait
    """,
)
"""The sentence replaces an earlier statement."""

ADOPTION_CUE = Cue(
    r"\b(?:use|using|go with|switch to|verwende[nt]?|benutze[nt]?|nutze[nt]?|nimm|nehmen)\b",
    r"\b(?:usa|usar|usemos|utiliza|utilise[rzs]?|utilisons)\b|用",
)
"""The sentence adopts something; both "use that instead" and the statement it replaces do."""

REJECTION_CUE = (
    r"(?:\binstead of|\brather than|\bno longer(?: use)?|\bswitch(?:ing|ed)? from|\b(?:and |, ?)not|\banstatt|\bstatt"
    r"|\ben lugar de|\ben vez de|\bau lieu (?:de |d['’])|\bplutôt qu(?:e |['’])|而不是|不再用)\s*"
    r"(?:(?:the|an?|der|die|das|den|el|la|le) |l['’])?([^\s,.;:，。；]+)"
)
"""The sentence rejects something; group 1 is what it rejects."""

NEGATION_CUE = Cue(
    r"\b(?:never|not|don['’]?t|avoid|without|no longer|stop|nicht|nie(?:mals)?|keine?n?|vermeide)\b|n['’]t\b",
    r"\b(?:no|nunca|jamás|evita|sin|jamais|pas|évite[rz]?|sans)\b|不|禁止|勿|避免|别",
)

COMPLETION_CUE = Cue(
    r"\b(?:is|are|that['’]?s|all) (?:now )?(?:done|finished|completed)\b|^done\b|\bno longer needed\b",
    r"\b(?:ist|sind) (?:jetzt )?(?:erledigt|fertig)\b|\bnicht mehr nötig\b",
    r"\b(?:ya está|está hecho|está terminado|ya no hace falta)\b|\b(?:c['’]est fait|est terminé|plus besoin)\b",
    r"\bno need (?:to|for)\b|完成了|已完成|已经完成|不用再|搞定了",
    words="done finished completed longer erledigt fertig ya fait besoin need",
)
"""The user says that something is done or no longer needed."""
_STATED_BY_USER = frozenset(
    word for cue in (CONSTRAINT_CUE, CHOICE_CUE, REPLACEMENT_CUE, DECISION_CUE, COMPLETION_CUE) for word in cue.words
)
"""Each statement of the user in ASCII has one of these words."""

_FILLERS = """
a an and any are as at be but by can do does done dont for from go going have i i'll i'm if in into is it it's its
just keep let let's lets like make me more my never no not now of off ok on only or our out please prefer should so
sure than that the their them then there these they this to up use used using via was we we'll what when which
will with you your always actually instead rather must avoid ensure also here about after before decided switch
stick all longer anymore agreed chose settled new old one first other still don't finished completed need needed
der die das den dem des ein eine einen einem und oder mit für von zu im auf ist sind bitte immer nie nicht kein
keine keinen statt stattdessen doch lieber wir ihr du sie es man verwende verwenden benutze benutzen nutze nehmen
el la los las un una unos unas y o de del en con por para que son siempre nunca usa usar usemos utiliza mejor
lugar vez ya lo le se favor les une des du et ou dans avec pour par qui sont toujours jamais utilise utiliser
utilisons plutôt lieu pas ne tu vous nous il faut finalement
"""
FILLER_WORDS = frozenset(_FILLERS.split())
"""Words that do not show what a sentence is about."""
HAN_FILLERS = (
    r"改用|换成|而不是|还是用|不再用?|改为|使用|我们|决定|采用|就用|总是|始终|永远|不要|必须|禁止|务必|避免|用|请|吧"
)


ConstraintStatus: TypeAlias = Literal["active", "superseded", "done"]
ConstraintKind: TypeAlias = Literal["constraint", "decision"]
ConstraintSpeaker: TypeAlias = Literal["user", "assistant"]

MAX_CONSTRAINTS = 400
MAX_CONSTRAINTS_PER_MESSAGE = 40
MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS = 4, 300
"""A longer sentence is a specification or pasted text, and is not extracted."""
MAX_CODE_SHARE = 0.05
"""A line with a larger share of brackets and similar characters is code, a log or a table."""
SCANNED_CHARS = 20_000
SAME_SUBJECT = 0.5
"""The share of common subject words from which two statements have the same subject."""
REPLACEMENT_REACH_MESSAGES = 20
"""How many messages back "use that instead" reaches when it does not name what it replaces."""
_CODE = lazy_pattern(r"(?s)```.*?(?:```|\Z)|<([\w-]{1,40})>.{0,2000}?</\1>")
_SENTENCE_END = lazy_pattern(r"(?<=[.!?;])\s+|(?<=[。！？；])|[\n\u2028\u2029]")
_ASCII_SENTENCE_END = lazy_pattern(r"\s(?<=[.!?;]\s)\s*|\n")
"""The same for a text in ASCII. Each match begins with white space, so `re` skips everything else."""
# A pasted mail has no sign of its end, so it reaches to the end of the message.
_HEADER = (
    r"[ \t>]{0,8}(?:from|to|cc|date|sent|author|von|an|gesendet|datum|de|para|enviado|fecha|envoyé|à"
    r"|发件人|收件人|日期)[ \t]?[:：]"
)
_MAIL = lazy_pattern(
    rf"(?im)^(?:{_HEADER}.{{0,300}}\n{_HEADER}"
    r"|[ \t>]{0,8}(?:subject|message-id|return-path|received|reply-to|betreff|asunto|objet|主题|件名)[ \t]?[:：]"
    r"|-{2,20} ?(?:original|forwarded) message|begin forwarded message:"
    r"|(?:on|am|le|el) .{5,200} (?:wrote|schrieb.{0,100}|a écrit|escribió) ?:[ \t]*$)"
)
_LOG_LINE = lazy_pattern(
    r"(?m)^[ \t]*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d\b|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d "
    r"|\d{1,3}(?:\.\d{1,3}){3} - |\[?(?:TRACE|DEBUG|INFO|WARN|ERROR|FATAL|CRITICAL|trace|debug|info|warn|error|fatal)\]"
    r"|(?:TRACE|DEBUG|INFO|WARN|ERROR|FATAL|CRITICAL)[ :|]|(?:WARNING|NOTICE):\w+:|Traceback \(most recent call last\)"
    r"|npm ERR!|at [\w.$<>]+\(|File \").*$"
)
_DIFF_LINE = lazy_pattern(
    r"(?m)^(?:diff --git |index [0-9a-f]{4,40}\.\.|--- (?:a/|/dev/null)|\+\+\+ (?:b/|/dev/null)|@@ -\d).*$"
)
_CODE_MARK = lazy_pattern(r"[][{}<>\\=|;$`]")
_LIST_MARK = lazy_pattern(r"^(?:[-*•]|\d{1,2}[.)])\s+")
_WORD = r"[^\W\d_][\w.+#'’/-]*[\w+#]|[^\W\d_]|\d{2,}"
_HAN = r"[\u4e00-\u9fff]+"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint or a decision, in its original wording."""

    text: str
    kind: ConstraintKind
    speaker: ConstraintSpeaker
    sources: tuple[int, ...]
    """The positions of the messages that state it: the first and the latest ones."""
    status: ConstraintStatus = "active"
    settled_by: int | None = None
    """The position of the message that superseded or closed it."""

    @property
    def is_order(self) -> bool:
        """Whether it says what to do always or never."""
        return self.kind == "constraint" and _sentence_traits(self.text.lower()).is_order

    def __str__(self) -> str:
        # The user's wording is kept verbatim, unless it contains characters that could break the line.
        text = self.text if self.speaker == "user" and self.text.isprintable() else clip_to_line(self.text)
        quote = f"“{text}” #{self.sources[-1]}"
        return quote if self.status == "active" else f"{quote} ({self.status} by #{self.settled_by})"


@dataclass(slots=True)
class Constraints:
    """Constraints and decisions, the latest last."""

    _constraints: dict[str, Constraint] = field(default_factory=dict[str, Constraint])

    def __iter__(self) -> Iterator[Constraint]:
        return iter(self._constraints.values())

    def observe(self, text: str, speaker: ConstraintSpeaker, position: int) -> None:
        """Extract the constraints and decisions from a text by the user or the model."""
        if not _may_state(text, speaker):
            return
        count = 0
        for sentence in _sentences(text):
            lower = sentence.lower()
            words = cue_words(lower)
            may_complete = speaker == "user" and COMPLETION_CUE.may_match(words)
            if may_complete and matches_cue(COMPLETION_CUE, lower) and self._close(lower, position):
                continue
            if kind := _kind(lower, speaker, words):
                self._supersede(lower, speaker, position)
                self._add(Constraint(sentence, kind, speaker, (position,)))
                count += 1
            if count == MAX_CONSTRAINTS_PER_MESSAGE:
                break

    def _add(self, constraint: Constraint) -> None:
        key = " ".join(constraint.text.lower().split())
        if known := self._constraints.pop(key, None):
            constraint = replace(constraint, sources=add_source(known.sources, constraint.sources[-1]))
        self._constraints[key] = constraint
        if len(self._constraints) > MAX_CONSTRAINTS:
            # The oldest of the least important: what no longer holds, then what is no explicit order.
            del self._constraints[min(self._constraints, key=lambda key: _importance(self._constraints[key]))]

    def _supersede(self, lower: str, speaker: ConstraintSpeaker, position: int) -> None:
        """Mark the statements that a new one replaces as superseded."""
        # The model cannot supersede a constraint of the user.
        active = {
            key: constraint.text.lower()
            for key, constraint in self._constraints.items()
            if constraint.status == "active"
            and (speaker == "user" or constraint.speaker == "assistant")
            and key != lower
        }
        replaced = [key for key, old in active.items() if _contradicts(lower, old)]
        new = _sentence_traits(lower)
        if not replaced and new.is_replacement and new.is_adoption and len(new.subject) == 1:
            # The statement adopts one thing in place of another that it does not name.
            recent = (
                key
                for key in reversed(active)
                if position - self._constraints[key].sources[-1] <= REPLACEMENT_REACH_MESSAGES
            )
            replaced = [key for key in recent if matches_cue(ADOPTION_CUE, active[key])][:1]
        for key in replaced:
            self._constraints[key] = replace(self._constraints[key], status="superseded", settled_by=position)

    def _close(self, lower: str, position: int) -> bool:
        """Mark the constraints that a sentence declares done; return whether there were any."""
        words = _cached_subject(lower)
        closed = [
            key
            for key, constraint in self._constraints.items()
            if constraint.status == "active"
            and len(words & (subject := _cached_subject(constraint.text.lower()))) > len(subject) / 2
        ]
        for key in closed:
            self._constraints[key] = replace(self._constraints[key], status="done", settled_by=position)
        return bool(closed)


def decisions_in(text: str) -> list[str]:
    """Return the decisions that the model states in a text, each once, the last one last."""
    if not _may_state(text, "assistant"):
        return []
    found: dict[str, str] = {}
    count = 0
    for sentence in _sentences(text):
        lower = sentence.lower()
        if _kind(lower, "assistant", cue_words(lower)):
            key = " ".join(lower.split())
            found.pop(key, None)
            found[key] = sentence
            count += 1
        if count == MAX_CONSTRAINTS_PER_MESSAGE:
            break
    return list(found.values())


def _may_state(text: str, speaker: ConstraintSpeaker) -> bool:
    """Return whether a sentence of a text may have a cue; most tool output and most answers have no word of one."""
    words = cue_words(text[:SCANNED_CHARS].lower())
    if speaker == "assistant":  # a model states decisions only
        return DECISION_CUE.may_match(words) and DECISION_CUE.may_occur(text)
    return words is None or not _STATED_BY_USER.isdisjoint(words)


def _importance(constraint: Constraint) -> int:
    if constraint.status != "active":
        return 0
    return 2 if constraint.is_order else 1


def conflicting_constraints(constraints: Iterable[Constraint]) -> Iterator[str]:
    """Yield a description of each active decision of the model that contradicts an active statement of the user."""
    active = [constraint for constraint in constraints if constraint.status == "active"]
    requests = [constraint for constraint in active if constraint.speaker == "user"]
    for decided in (constraint for constraint in active if constraint.speaker == "assistant"):
        for asked in requests:
            if _contradicts(decided.text.lower(), asked.text.lower()):
                yield f"the model decided {decided}, the user asked for {asked}"


def _kind(lower: str, speaker: ConstraintSpeaker, words: Sequence[str] | None) -> ConstraintKind | None:
    """Return the kind of a statement of some words; None if it is neither. Only the user can set a constraint."""

    def matches(cue: Cue) -> bool:
        return cue.may_match(words) and matches_cue(cue, lower)

    if matches(DECISION_CUE):
        return "decision"
    if speaker == "assistant":
        return None
    if matches(CONSTRAINT_CUE):
        return "constraint"
    is_choice = matches(CHOICE_CUE) or (matches(REPLACEMENT_CUE) and matches(ADOPTION_CUE))
    return "decision" if is_choice else None


def _contradicts(new: str, old: str) -> bool:
    """Return whether a statement contradicts an older one on the same subject."""
    now, before = _sentence_traits(new), _sentence_traits(old)
    shared = len(now.subject & before.subject)
    if not shared:
        return False
    if now.rejected and now.rejected <= before.adopted:
        return True
    if now.is_negated != before.is_negated:
        return shared > SAME_SUBJECT * len(now.subject | before.subject)
    is_replacement = now.is_replacement and now.is_adoption and before.is_adoption
    return is_replacement and shared >= SAME_SUBJECT * min(len(now.subject), len(before.subject))


class _Traits(NamedTuple):
    """The subject and the cues of a sentence, cached because each new constraint is compared with all others."""

    subject: frozenset[str]
    rejected: frozenset[str]
    """The subject words that the sentence rejects."""
    adopted: frozenset[str]
    """The other subject words."""
    is_negated: bool
    is_adoption: bool
    is_replacement: bool
    is_order: bool


@lru_cache(maxsize=4 * MAX_CONSTRAINTS)
def _sentence_traits(lower: str) -> _Traits:
    rejected = re.search(REJECTION_CUE, lower)
    return _Traits(
        _cached_subject(lower),
        _cached_subject(rejected[1]) if rejected else frozenset(),
        _cached_subject(re.sub(REJECTION_CUE, " ", lower)),
        matches_cue(NEGATION_CUE, lower),
        matches_cue(ADOPTION_CUE, lower),
        matches_cue(REPLACEMENT_CUE, lower),
        matches_cue(ORDER_CUE, lower),
    )


def subject_words(lower: str) -> frozenset[str]:
    """Return the words that a sentence is about; for Chinese characters, adjacent pairs of them."""
    words = {word.rstrip(".'’") for word in re.findall(_WORD, re.sub(_HAN, " ", lower))}
    runs = re.findall(_HAN, re.sub(HAN_FILLERS, " ", lower))
    pairs = {run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1))}
    return frozenset(words - FILLER_WORDS) | pairs


@lru_cache(maxsize=4 * MAX_CONSTRAINTS)
def _cached_subject(lower: str) -> frozenset[str]:
    """Return `subject_words`, cached because each new constraint is compared with all others."""
    return subject_words(lower)


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text that could be constraints: no code, no pastes, no quotations, no questions."""
    text = text[:SCANNED_CHARS]
    if "```" in text or "</" in text:
        text = _CODE.sub("\n", text)
    text = _without_pastes(text)
    for piece in (_ASCII_SENTENCE_END if text.isascii() else _SENTENCE_END).split(text):
        sentence = piece.strip()
        if mark := _LIST_MARK.match(sentence):
            sentence = sentence[mark.end() :]
        if _looks_spoken(sentence):
            yield sentence


def _without_pastes(text: str) -> str:
    """Return a text without pasted mail, logs and diffs that no fence sets off: others wrote them, not the user."""
    text = text.replace("\r\n", "\n")
    if "\n" not in text and not any(pattern.match(text) for pattern in (_MAIL, _LOG_LINE, _DIFF_LINE)):
        return text  # all of them begin where a line does
    mail = _MAIL.search(text)
    text = text[: mail.start()] if mail else text
    for pattern, goes_on in ((_LOG_LINE, _before_blank_line), (_DIFF_LINE, _diff_end)):
        found = [*pattern.finditer(text)]
        if found:
            text = f"{text[: found[0].start()]}\n{text[goes_on(text, found[-1].end()) :]}"
    return text


def _before_blank_line(text: str, start: int) -> int:
    """Return where the paragraph ends in which a log ends: an entry may go on in the lines below it."""
    return blank.start() if (blank := re.compile(r"\n[ \t]*(?:\n|\Z)").search(text, start)) else len(text)


def _diff_end(text: str, start: int) -> int:
    """Return where a diff ends: each line of it begins with a sign or a blank."""
    end = re.compile(r"\n(?![-+ \t\\])").search(text, start)
    return end.start() if end else len(text)


def _looks_spoken(sentence: str) -> bool:
    """Return whether a line looks like a statement and not like a quotation, a question or pasted code."""
    if not MIN_SENTENCE_CHARS <= len(sentence) <= MAX_SENTENCE_CHARS or sentence[0] in ">|+" or sentence[-1] in "?？":
        return False
    return len(_CODE_MARK.findall(sentence)) <= MAX_CODE_SHARE * len(sentence)
