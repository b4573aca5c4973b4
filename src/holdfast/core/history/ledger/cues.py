"""The words by which people lay down, decide, replace and finish, in five languages.

English, German, Spanish, French and Chinese, one line or more each, matched against sentences in lower case.
A cue is a hint and no grammar: each list leaves out what is more often said for other reasons ("I don't
know", "immer noch", "toujours pas", "ça ne marche pas"). "Always" and "never" are said of the world more often than to
anybody: they lay something down where they open an order ("never touch"), stand behind a verb that does, or behind
"must" and its like; not behind "I", "it" or "they", and not before a past.
"""

import re


def _any_pattern(*patterns: str) -> str:
    return "|".join(patterns)


def matches_cue(cue: str, sentence: str) -> bool:
    """Return whether a sentence, in lower case, holds a cue."""
    return re.search(cue, sentence) is not None


_START = r"(?:^|[,;:(–—-]\s*|\b(?:please|and|but|so|also|you|just|then|or)\s+)"
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
"""Verbs by which an agent is told what to do, as they are said to it."""
_OF_OTHERS = (
    "".join(rf"(?<!\b{word} )" for word in ("i", "it", "he", "she", "they", "that", "this", "who", "which"))
    + r"(?<!['’]ll )(?<!n['’]t )"
)
_EVER = r"(?:always|never(?:\s+ever)?)"
_ORDER = rf"{_OF_OTHERS}\b{_EVER}\s+(?:{'|'.join(_ORDERS.split())})\b"
# What follows is a past, a third person, or no verb at all: "never saw", "always fails", "always great".
_NO_ORDER = (
    r"(?!(?:saw|seen|had|was|were|been|knew|heard|got|did|mind|say|again|really|quite|very|just|good|great|nice|fun|full"
    r"|up|down|here|there|the|an?|so|too|easy|cool|special|give up)\b|(?!bring|ping|string)\w+ing\b"
    r"|(?!need|feed|speed|seed|embed|exceed|proceed|succeed)\w+ed\b|(?!focus|bias|alias)\w+[^s\W]s\b)"
)
_OPENING = rf"(?:^|[,;:(–—]\s*|\b(?:please|and|but|so|then|or)\s+){_EVER}\s+{_NO_ORDER}\w+(?:\s+\w|[.!]?$)"
_DUTIES = r"must|should|shall|have to|has to|needs? to|ought to|may(?= never)|(?:are|is|supposed) to"
_DUTY = rf"(?<!\bi )\b(?:{_DUTIES})\s+{_EVER}\b"
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

CONSTRAINT_CUE = _any_pattern(
    _ORDER,
    _OPENING,
    _DUTY,
    _START + r"(?:do not|don['’]?t)\s+" + _OTHERWISE,
    rf"\bi {_EVER} (?:want|need|expect) (?:you|the|your|every|each|all)\b|\bplease,?\s+keep\b",
    r"(?<!\bi )\b(?:must|mustn['’]?t|shall|should(?:n['’]?t)?\s+not)\b(?! have\b| be (?:an?|the|some)\b)",
    r"\b(?:make sure|be sure to|ensure|avoid|refrain from|stick (?:to|with)|from now on|under no circumstances)\b",
    r"\b(?:i(?:['’]d)? (?:strongly )?prefer|prefer (?:to|using)|only (?:ever )?use|use only|no longer use)\b",
    r"^(?:please,? |and |also |then )?use\b|\bkeep in mind\b",
    _START + r"(?:use|prefer|keep|leave) (?=.*\b(?:not|instead of|rather than|unchanged|as is|alone)\b)",
    rf"{_GERMAN}.*\b(?:{_IMMER}|{_NIE})|^(?:bitte )?(?:{_IMMER}|{_NIE})",
    rf"\b(?:soll(?:st|en|ten?)?|muss|musst|müssen|darf(?:st)?|dürfen|bitte)\b.*\b(?:{_IMMER}|{_NIE})",
    r"\b(?:auf keinen fall|keinesfalls|ab jetzt|ab sofort)\b",
    r"\b(?:darf(?:st)?|sollst|dürfen|bitte)\b.*\b(?:nicht|keine?n?)\b|\b(?:achte darauf|stelle? sicher)\b",
    r"\bnicht (?:verwenden|benutzen|ändern|anfassen|löschen)\b",
    r"\b(?:musst?|müssen|vermeide|bevorzuge|verwende|benutze|nutze|nimm)\b",
    rf"{_SPANISH}.*\b(?:siempre|nunca|jamás)\b|^(?:por favor,? )?(?:siempre|nunca|jamás)\b",
    r"\b(?:asegúrate|evita|prefiero|de ahora en adelante|a partir de ahora)\b",
    r"\b(?:debe[sn]?|tienes? que|hay que)\b|(?:^|[,;:]\s*|por favor,?\s+)(?:usa|utiliza|mantén)\b",
    r"\bno (?:uses|hagas|toques|cambies|modifiques|borres|crees|olvides|añadas|agregues|pongas|elimines|instales)\b",
    rf"{_FRENCH}.*\b(?:toujours\b(?! pas)|jamais\b)|^(?:toujours|jamais)\b(?! pas)",
    r"\b(?:veuillez|merci de|s['’]il (?:te|vous) plaît|dois|devez)\b.*\b(?:toujours|jamais)\b",
    r"\b(?:assure-toi|assurez-vous|évite[rz]?|je préfère|préfère|désormais)\b",
    r"\b(?:il faut|tu dois|vous devez|doit|doivent)\b|(?:^|[,;:]\s*)(?:utilise[rz]?|garde[rz]?)\b",
    r"\bn(?:e |['’])(?:touche|modifie|change|utilise|supprime|fai[st]|crée|ajoute|met|renomme|oublie)\w*\b.*\bpas\b",
    r"(?:^|[，,；;：:]|请|要|应该?|你|您|必须)(?:总是|始终|永远|从不)|绝不|绝对不|不要|不得|禁止|必须|务必|一定要|请勿|避免|优先|尽量|只能|只用|从现在起|以后都",
)
"""Something to keep to from here on."""

DECISION_CUE = _any_pattern(
    r"\blet['’]?s (?:use|go with|stick with|keep|switch|drop|stay with|adopt)\b|\bdecision:",
    r"\b(?:we|i)(?:['’]ve| have)? (?:decided|agreed|settled|chose|chosen|opted)\b|\bdecided (?:to|on|against)\b",
    r"\b(?:going|we['’]ll go|i['’]ll go) with\b",
    r"\b(?:entschieden|beschlossen)\b|\b(?:nehmen|verwenden|benutzen) wir\b|\bwir (?:nehmen|verwenden|bleiben)\b",
    r"\b(?:usemos|vamos a usar|vamos con|decid(?:imos|ido|í)|optamos|elegimos|hemos elegido)\b",
    r"\b(?:utilisons|on va utiliser|partons sur|on part sur|décidé|optons|avons choisi)\b",
    r"决定|我们用|就用|采用|选用|改用|我们选|就选",
)
"""Something settled, whoever of the two says so."""

CHOICE_CUE = _any_pattern(
    r"\b(?:we|i)(?:['’]ll|['’]m| will| are| am)? (?:use|using|go(?:ing)? with|switch(?:ing)? to|stick(?:ing)? with)\b",
    r"\bgo (?:with|for) (?:the|option|plan|approach|\w+ instead)\b",
)
"""Something a person settles; a model says the same of every step it takes."""

REPLACEMENT_CUE = _any_pattern(
    r"\b(?:actually|instead|rather|scratch that|on second thought|change of plan|no longer|any ?more)\b",
    r"\bswitch(?:ed|ing)? (?:from|to)\b|\b(?:forget|drop) (?:that|it|about|the)\b|\bchanged my mind\b",
    r"\b(?:stattdessen|doch lieber|doch nicht|anstatt|statt|nicht mehr)\b",
    r"\b(?:en su lugar|en lugar|en vez|mejor|ya no|pensándolo bien)\b",
    r"\b(?:plutôt|finalement|à la place|au lieu|ne plus|en fait)\b",
    r"改用|换成|而不是|还是用|不再|改为",
)
"""A word that what was said before no longer holds."""

ADOPTION_CUE = _any_pattern(
    r"\b(?:use|using|go with|switch to|verwende[nt]?|benutze[nt]?|nutze[nt]?|nimm|nehmen)\b",
    r"\b(?:usa|usar|usemos|utiliza|utilise[rzs]?|utilisons)\b|用",
)
"""Something is taken up: what "use that instead" and what it replaces have in common."""

REJECTION_CUE = (
    r"(?:\binstead of|\brather than|\bno longer(?: use)?|\bswitch(?:ing|ed)? from|\b(?:and |, ?)not|\banstatt|\bstatt"
    r"|\ben lugar de|\ben vez de|\bau lieu (?:de |d['’])|\bplutôt qu(?:e |['’])|而不是|不再用)\s*"
    r"(?:(?:the|an?|der|die|das|den|el|la|le) |l['’])?([^\s,.;:，。；]+)"
)
"""What is given up, where a sentence says so."""

NEGATION_CUE = _any_pattern(
    r"\b(?:never|not|don['’]?t|avoid|without|no longer|stop|nicht|nie(?:mals)?|keine?n?|vermeide)\b|n['’]t\b",
    r"\b(?:no|nunca|jamás|evita|sin|jamais|pas|évite[rz]?|sans)\b|不|禁止|勿|避免|别",
)

COMPLETION_CUE = _any_pattern(
    r"\b(?:is|are|that['’]?s|all) (?:now )?(?:done|finished|completed)\b|^done\b|\bno longer needed\b",
    r"\b(?:ist|sind) (?:jetzt )?(?:erledigt|fertig)\b|\bnicht mehr nötig\b",
    r"\b(?:ya está|está hecho|está terminado|ya no hace falta)\b|\b(?:c['’]est fait|est terminé|plus besoin)\b",
    r"\bno need (?:to|for)\b|完成了|已完成|已经完成|不用再|搞定了",
)
"""A person's word that something is over with."""

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
"""Words that do not tell what a sentence is about."""
HAN_FILLERS = (
    r"改用|换成|而不是|还是用|不再用?|改为|使用|我们|决定|采用|就用|总是|始终|永远|不要|必须|禁止|务必|避免|用|请|吧"
)
