"""Texts -> terms: words without case, accents and endings, and without the stop words of their language; and
the words of a passage that a query shares with it.

Words of Chinese, Japanese and Korean are not separated by spaces; their terms are pairs of neighboring characters.

The endings are those of number, gender, case and person: light stemming, which in search is about as good as full
stemming and seldom makes two words one. A step is a pattern and what replaces it; steps follow each other. The endings
of English need more than a pattern.

Shared words are found by their letters, without the model: this takes microseconds, so it can be done while someone
types. Words are compared as terms, so brig and brigs count as the same. The last word of a query may be the beginning
of one. A passage that resembles a query in meaning alone has no highlights.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterator
from functools import cache

from bertree.errors import UserError

Step = tuple[re.Pattern[str], str]

_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el "
    "en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu "
    "ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na "
    "nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so "
    "sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
CODES = frozenset(_CODES.split())  # of ISO 639-1
SAME = {"nb": "no", "nn": "no"}

_STOP_WORDS = {
    "en": "a about after all an and any are as at be been but by can could did do does for from had has have he her "
    "him his how i if in is it its me my no not of on or our she should so than that the their them then there these "
    "they this to was we were what when where which who whom whose why will with would you your",
    "de": "aber als am an auch auf aus bei bin bis bist da das dass dem den der des die dies diese diesem diesen "
    "dieser dieses doch du durch ein eine einem einen einer eines er es fur hat hatte haben ich ihr ihre im in ist "
    "ja kann mein mich mir mit nach nicht noch nur ob oder ohne sein seine sich sie sind so uber um und uns unter "
    "vom von vor war waren warum was weil wenn wer werden wie wir wird wo wurde zu zum zur",
    "fr": "a ai au aux avec ce ces cet cette comme comment d dans de des du elle elles en est et ete eu il ils j je "
    "l la le les leur leurs lui m ma mais me mes meme moi mon n ne nos notre nous on ont ou par pas plus pour "
    "pourquoi qu quand que quel quelle quels quelles qui s sa sans se ses si son sont sur ta te tes toi ton tu un "
    "une vos votre vous y",
    "es": "a al algo como con cual cuando de del desde donde e el ella ellas ellos en entre era es esa ese eso esta "
    "estaba estan este esto fue ha han hasta hay la las le les lo los mas me mi muy ni no nos o otra otro para pero "
    "por porque que quien se ser si sin sobre son su sus te tiene tu un una uno y ya yo",
    "it": "a ad ai al alla alle agli anche che chi ci come con cosa cui da dai dal dalla dalle de dei del della "
    "delle dello degli di dove e ed era gli ha hanno ho i il in io l la le lei li lo loro lui ma mi mio ne nei nel "
    "nella nelle no noi non o per perche piu quale quando quella quello questa questo se si sono su sua sue sui sul "
    "sulla suo ti tra tu un una uno vi voi",
    "pt": "a ao aos as com como da das de dela dele delas deles do dos e ela elas ele eles em entre era essa esse "
    "esta este eu foi ha isso isto ja la lhe mais mas me mesmo meu minha muito na nao nas nem no nos nossa nosso num "
    "numa o onde os ou para pela pelo pelas pelos por porque qual quando que quem se sem ser seu seus so sua suas "
    "sobre tambem te tem um uma voce",
    "nl": "aan al als bij dan dat de deze die dit doch door dus een en er ge had heb hebben heeft het hier hij hoe "
    "hun ik in is ja je kan maar me men met mij mijn na naar niet nog nu of om omdat onder ons ook op over te tot u "
    "uit uw van veel voor waar waarom wanneer want was wat we welk welke werd wie wij wordt worden zal ze zich zij "
    "zijn zo zou",
    "sv": "alla att av blev bli blir da de dem den denna deras dess dessa det detta dig din du efter eller en er ett "
    "for fran ha hade han hans har hon hur i icke inte ja jag kan kunde man med mellan men mig min mot nar ni nu "
    "nagon nagot och om oss pa sa sig sin sina sitt ska skulle som till under upp ut vad var varfor vara vart vem vi "
    "vid vilka vilken",
    "da": "af alle at blev blive bliver da de dem den denne der deres det dette dig din dog du efter eller en end er "
    "et for fra ha han hans har havde hende her hos hun hvad hvem hvis hvor hvordan hvorfor i ikke ind jeg jo kan "
    "kunne man med men mig min mod nar ned noget nogle nu og om op os over pa sa sig sin skal som til ud under var "
    "vi vil ville",
    "no": "alle at av ble bli blir da de dem den denne der deres det dette deg din du eller en enn er et ett etter "
    "for fra ha hadde han hans har hennes her hun hva hvem hver hvis hvor hvordan hvorfor i ikke inn ja jeg kan "
    "kunne man med meg men mer min mot na nar ned nei noe noen og om opp oss over pa sa seg selv sin skal som til ut "
    "under var vi vil ville",
    "fi": "ei eika en ennen ett etta han hanen he hei ja jo joka jos jotka kai kanssa kuin kuka kun me mika miksi "
    "milla milloin minka mina minun missa mita mukaan mutta myos ne niin niita nyt oli olla olen olet on ovat se sen "
    "siina sina sita sitten tai tama tassa te tuo vaan vai vain vaikka",
    "ru": "а без более бы был была были было быть в вам вас весь во вот все вы где да для до его ее если есть еще же "
    "за и из или им их к как какая какои кто ли либо мне может мы на над не нет ни них но о об он она они оно от по "
    "под при с со так такои там то того тоже тои только том ты у уже чего чем что чтобы эта эти это этои этот я",
}  # fmt: skip

_STEPS = {
    "de": ((r"(?<=\w{4})(?:ern|em|en|er|es|e|n|s)$", ""),),
    "fr": (
        (r"(?<=\w{2})eaux$", "eau"),
        (r"(?<=\w{3})aux$", "al"),
        (r"(?<=\w{3})[sx]$", ""),
        (r"(?<=\w{3})(?:ee|er|ez|e)$", ""),
    ),
    "es": ((r"(?<=\w{2})ces$", "z"), (r"(?<=\w{3})(?:es|s)$", ""), (r"(?<=\w{3})[aeo]$", "")),
    "it": ((r"(?<=\w{2})([cg])h[ei]$", r"\1"), (r"(?<=\w{3})[aeio]+$", "")),
    "pt": (
        (r"(?<=\w{2})[oa]es$", "ao"),
        (r"(?<=\w{2})([aeo])is$", r"\1l"),
        (r"(?<=\w{2})ns$", "m"),
        (r"(?<=\w{2})([rz])es$", r"\1"),
        (r"(?<=\w{3})s$", ""),
        (r"(?<=\w{3})[aeo]$", ""),
    ),
    "nl": (
        (r"(?<=\w{2})heden$", "heid"),
        (r"(?<=\w{3})(?:en|e|s)$", ""),
        (r"([bdfgklmnprst])\1$", r"\1"),
        (r"([aeou])\1([bcdfgklmnprstvz])$", r"\1\2"),
    ),
    "sv": ((r"(?<=\w{3})s$", ""), (r"(?<=\w{3})(?:arna|erna|orna|aren|or|ar|er|an|en|et|na|a|e)$", "")),
    "da": ((r"(?<=\w{3})s$", ""), (r"(?<=\w{3})(?:erne|ende|ede|ene|er|en|et|e)$", "")),
    "no": ((r"(?<=\w{3})s$", ""), (r"(?<=\w{3})(?:erne|ende|ede|ene|ane|er|en|et|ar|a|e)$", "")),
    "fi": (
        (r"(?<=\w{3})(?:ssa|sta|lla|lta|lle|ksi|tta|han|hin|jen|ten|den|na|n|t)$", ""),
        (r"(?<=\w{3})[aeiouy]+$", ""),
    ),
    "ru": (
        (
            r"(?<=\w{3})(?:иями|ями|ами|иеи|иям|иях|ого|его|ому|ему|ыми|ими|ая|яя|ое|ее|ые|ие|ыи|ии|ых|их|ую|юю|ои|еи|"
            r"ом|ем|ам|ям|ах|ях|ов|ев|ия|ию|ью|а|я|о|е|и|ы|у|ю|ь)$",
            "",
        ),
    ),
}
_ELISIONS = {
    "fr": r"^(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)['’]",
    "it": r"^(?:[cdlmnstv]|un|gl|all|dall|dell|nell|sull|coll|quell|quest|com|dov)['’]",
}
_NAMES = (
    "english=en german=de french=fr spanish=es italian=it portuguese=pt dutch=nl swedish=sv danish=da norwegian=no "
    "finnish=fi russian=ru chinese=zh japanese=ja korean=ko"
)
STEMMED = ("en", *_STEPS)  # languages with stop words and endings


def check_language(language: str) -> None:
    """Raise an error for a code that names no language."""
    if base_language(language) not in CODES:
        codes = {code: code for code in STEMMED} | dict(pair.split("=") for pair in _NAMES.split())
        near = difflib.get_close_matches(base_language(language)[:40], codes, n=1)
        advice = f"did you mean '{codes[near[0]]}'?" if near else f"with stop words: {', '.join(STEMMED)}"
        raise UserError(f"language {language[:40]!r}: is no two-letter code of ISO 639-1; {advice}")


def base_language(language: str) -> str:
    """Return the code without a region: pt of pt-BR."""
    code = re.split("[-_]", language.strip().lower())[0]
    return SAME.get(code, code)


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language; none if it has no list."""
    return frozenset(_STOP_WORDS.get(language, "").split())


@cache
def ending_steps(language: str) -> tuple[Step, ...]:
    """Return what is removed from the beginning and the end of a word, in order."""
    elision = [(re.compile(_ELISIONS[language]), "")] if language in _ELISIONS else []
    return (*elision, *((re.compile(pattern), to) for pattern, to in _STEPS.get(language, ())))


VERSION = 1  # of what makes terms: an index whose terms another version made is made again
MOST_CACHED = 1 << 20  # words
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_PAIRED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+")
_TOKEN = re.compile(f"{_PAIRED.pattern}|{_WORD.pattern}")
_VOWEL = re.compile("[aeiou]|(?<=[^aeiou])y")
_ENDS_SHORT = re.compile("(^|[^aeiou])[aeiouy][^aeiouwxy]$")  # "hop", "whal": an e was dropped before -ing, -ed
_SYLLABLE = re.compile("[aeiouy]+[^aeiouy]+")


class Analyzer(dict[str, str]):
    """The terms of the words of a language, by word; "" for a stop word. Made by `analyzer_for`."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = base_language(language)

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order."""
        if not text.isascii():
            text = _PAIRED.sub(lambda run: f" {' '.join(_pairs(run.group()))} ", text)
        return [term for word in _WORD.findall(text) if (term := self[word])]

    def spans(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield the words of a text, stop words too, each with its beginning and end."""
        for match in _TOKEN.finditer(text):
            start, end = match.span()
            if _PAIRED.match(match.group()):
                yield from ((pair, start + at, start + at + len(pair)) for at, pair in enumerate(_pairs(match.group())))
            else:
                yield match.group(), start, end

    def stem(self, word: str) -> str:
        """Return a folded word without its ending."""
        if self.language == "en":
            return _stem_english(word)
        for pattern, replacement in ending_steps(self.language):
            word = pattern.sub(replacement, word)
        return word

    def is_stop_word(self, word: str) -> bool:
        """Whether a folded word is left out of the index."""
        return word in stop_words(self.language)

    def __missing__(self, word: str) -> str:
        if len(self) >= MOST_CACHED:
            self.clear()
        folded = fold(word)
        for pattern, replacement in ending_steps(self.language)[:1] if "'" in folded or "’" in folded else ():
            folded = pattern.sub(replacement, folded)  # l'homme: a stop word may be behind the article
        term = self[word] = "" if self.is_stop_word(folded) else self.stem(folded)
        return term


@cache
def analyzer_for(language: str) -> Analyzer:
    """Return the analyzer of a language, which remembers the words it has seen."""
    return Analyzer(language)


def fold(word: str) -> str:
    """Return a word without case and accents, and without 's."""
    word = word.casefold()
    for ending in ("'s", "’s"):
        word = word.removesuffix(ending)
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _stem_english(word: str) -> str:
    """Return a word without the endings of plurals and verbs: the first rules of Porter's stemmer."""
    if word.endswith(("sses", "ies")) and len(word) > 4:
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3:
        word = word[:-1]
    for ending in ("eed", "ed", "ing"):
        if word.endswith(ending):
            word = _without(word, ending)
            break
    return word[:-1] + "i" if word.endswith("y") and _VOWEL.search(word[:-1]) else word


def _without(word: str, ending: str) -> str:
    """Remove the ending of a verb: hopping, hop; whaling, whale; filed, file; agreed, agree; but not sing or red."""
    rest = word.removesuffix(ending)
    if not _VOWEL.search(rest):
        return word
    if ending == "eed":
        return rest + "ee"
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-1:] == rest[-2:-1] and rest[-1] not in "aeioulsz":
        return rest[:-1]
    return rest + "e" if len(_SYLLABLE.findall(rest)) == 1 and _ENDS_SHORT.search(rest) else rest


_LEAST = 4  # letters of the beginning of a word


def find_highlights(query: str, text: str, language: str = "en") -> list[tuple[int, int]]:
    """Return beginning and end, in characters, of the words of a text that are also in a query.

    Stop words of the language are left out, unless the query has no others.
    """
    analyzer = analyzer_for(language)
    all_words = [fold(word) for word, _, _ in analyzer.spans(query)]
    typed = all_words[-1] if all_words and re.search(r"\w$", query) else ""
    words = {word for word in all_words if not analyzer.is_stop_word(word)} or set(all_words)
    stems = {analyzer.stem(word) for word in words}
    begins = len(typed) >= _LEAST and typed in words
    spans: list[tuple[int, int]] = []
    for word, start, end in analyzer.spans(text):
        folded = fold(word)
        if folded in words or (begins and folded.startswith(typed)) or analyzer.stem(folded) in stems:
            if spans and start < spans[-1][1]:  # pairs of characters overlap
                start = spans.pop()[0]
            spans.append((start, end))
    return spans
