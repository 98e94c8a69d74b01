"""Words that decide where sentences end: abbreviations, and words that sentences often start with, by language.

`sentences.py` uses them, and `export/web_page.py` writes them into pages (`json_text`), where
`export/web/page/sentences.js` applies the same rules. To add a language, add its entries here and a fixture in
`tests/text/sentences/`, and run `python -m benchmarks.sentences`. All words are in lower case and without the last
period; inner periods and no spaces, as in `z.b` for both `z.B.` and `z. B.`
"""

import json
from functools import cache
from typing import NamedTuple

ORDINALS = "cs da de et fi hr hu is lv nb nn no pl sk sl sr"
"""Languages that write an ordinal number as digits and a period."""
NAME_PARTICLES = "al da de del den der des di du el la las le los van von zu"
"""Words in names, as in `J. de Boer`, that also start sentences."""
LEADING_CLITICS = {"nl": "k m n s t"}
"""Words after an apostrophe, in lower case also at the start of a sentence, as in `'s Avonds`."""
ENDING_LETTERS = {"en": "I", "ru": "я"}
"""Letters that are words, and may end a sentence, by language."""

# Followed by the rest of the sentence.
ALWAYS = {
    "": "dr prof mr mrs ms st jr sr vs cf e.g i.e approx ca",
    "en": "rev gen col sgt capt lt cmdr maj gov sen rep hon messrs mt ft esp resp al viz",
    "de": "hr fr frl hrn fa fam dipl ing mag z.b d.h u.a o.ä i.d.r v.a u.u s.o s.u vgl bzw evtl ggf gem gegr geb gest "
    "inkl exkl zzgl ggü insb sog bsp str tel z.t z.z z.zt bd hl i.a i.v m.e",
    "fr": "m mm mme mmes mlle mlles me mgr pr ste av bd boul env ex par.ex p.ex cf éd tél c.-à-d",
    "es": "sto sta dra dres profa sra sres sras srta ud uds vd vds d dña da avda av ee ff p.ej pte prov "
    "gral lic arq ing mons tel aprox",
    "it": "sig sigg sig.ra sig.na dott dott.ssa avv ing arch geom p.es ad.es es tel",
    "pt": "sra srs sras dra profa eng av exmo exma p.ex tel aprox",
    "nl": "dhr mevr mw mej ir ing drs ds jhr o.a d.w.z m.a.w t.a.v i.v.m bijv bv vb vgl geb tel resp evt incl excl",
    "ru": "г-н г-жа гр тов проф акад доц им ул пр просп пер пл наб д кв корп см ср т.е т.к т.н т.о напр "
    "св ок обл р-н пос дер",
    "uk": "вул просп проф акад ім див т.зв напр обл р-н",
    "pl": "np tzn tj ul al prof hab inż mgr płk gen ks św os zob por ok",
    "sv": "t.ex bl.a d.v.s dvs s.k f.d ca tel",
    "da": "f.eks bl.a dvs ca tel hr fru",
    "nb": "f.eks bl.a dvs ca tel hr fru",
    "cs": "např tj tzv ul nám mudr judr ing mgr bc doc sv",
}
# Followed by a number.
NUMERIC = {
    "": "no nos nr fig figs p pp vol vols art ch chap sec tab vers",
    "en": "ext eq para",
    "de": "max mind min s abb abs kap ziff bd jg anm lfd art-nr",
    "fr": "n° chap al liv t",
    "es": "núm pág págs cap párr t",
    "it": "n num pag pagg cap",
    "pt": "n núm pág págs cap",
    "nl": "blz afb hfst par bijl",
    "ru": "стр рис табл гл п пп ст т",
    "uk": "стор рис табл ст",
    "pl": "ryc rys rozdz str",
    "sv": "s kap",
    "cs": "č obr kap",
}
# May end a sentence, which then continues with one of `STARTERS`.
ENDING = {
    "": "etc inc ltd co corp bros llc plc ph.d m.d b.a m.a a.m p.m u.s u.k u.n",
    "en": "jan feb mar apr jun jul aug sep sept oct nov dec est ave blvd rd dept univ assn ed eds min max",
    "de": "usw etc mio mrd tsd chr v.chr n.chr jh jhd std min sek okt dez ggmbh co jan feb aug sept nov dgl u.ä u.dgl "
    "u.v.m usf",
    "fr": "j.-c hab min sec janv févr avr juil sept oct nov déc s.a s.a.r.l",
    "es": "uu ee.uu a.c d.c a.m p.m s.a s.l cía máx mín ed",
    "it": "ecc a.c d.c s.p.a s.r.l",
    "pt": "a.c d.c s.a ltda cia",
    "nl": "enz e.d e.a v.chr n.chr chr n.v b.v jan feb mrt apr jul aug sept okt nov dec",
    "ru": "г гг в вв н.э э т.д т.п др проч тыс млн млрд руб коп долл экз чел мин сек ч км кг м ч",
    "uk": "р рр ст т.д т.п та.ін ін тис млн млрд грн",
    "pl": "itd itp m.in r w tys mln mld zł godz",
    "sv": "osv m.m etc",
    "da": "osv m.m m.v",
    "nb": "osv m.m",
    "cs": "atd apod tis mil mld kč r",
}
# Words that often start a sentence and rarely follow an abbreviation within one.
STARTERS = {
    "en": "the a an this that these those it he she we they you i his her its our their my your there here in on at "
    "by for from with to of as if when while where who what which why how after before since because although though "
    "however but and or so then thus now today yesterday tomorrow no not yes nobody everyone some many most all both "
    "each one once please do does did is are was were has have had can could will would may might must let",
    "de": "der die das den dem des ein eine einen einem einer dieser diese dieses er sie es wir ihr ich du man sein "
    "seine mein meine unser unsere in im an am auf aus bei beim mit nach von vom vor zu zum zur für über unter um als "
    "wenn weil während seit bis da dort hier dann danach dabei dazu daher darum deshalb doch aber und oder auch nur "
    "nun jetzt heute gestern morgen so wie was wer wo warum wann kein keine nicht nein ja alle viele einige jeder "
    "jede bitte ist sind war waren hat haben hatte kann wird außerdem jedoch trotzdem später niemand",
    "fr": "le la les un une des ce cet cette ces il elle ils elles on nous vous je tu son sa ses notre votre leur "
    "leurs mon ma mes dans en à au aux sur sous avec sans pour par de du chez vers après avant depuis pendant quand "
    "lorsque si comme mais et ou donc or puis ensuite alors ainsi aussi cependant toutefois aujourd hier demain qui "
    "que quoi où pourquoi comment non oui tout tous toutes chaque plusieurs certains l' d' c' j' n' s' qu' y voici "
    "voilà est était",
    "es": "el la los las un una unos unas este esta estos estas eso esto él ella ellos ellas yo tú usted ustedes "
    "nosotros su sus mi mis nuestro nuestra en a al de del con sin para por sobre desde hasta después antes cuando "
    "mientras donde si como pero y o u pues entonces luego además también aunque porque hoy ayer mañana no sí qué "
    "quién cuál cuándo dónde cómo todo todos todas cada muchos algunos hay es era fue tenía había está allí aquí nadie",
    "it": "il lo la i gli le un uno una questo questa questi queste egli lui lei loro noi voi io tu suo sua in nel "
    "nella a al alla di del della da dal con su per tra fra dopo prima quando mentre dove se come ma e o poi quindi "
    "inoltre anche però oggi ieri domani non no sì che chi tutti tutto ogni molti alcuni è era l' c' d' un'",
    "pt": "o a os as um uma este esta isso isto ele ela eles elas eu você nós seu sua em no na nos nas ao à de do da "
    "com sem para por sobre desde até depois antes quando enquanto onde se como mas e ou então além também porque "
    "hoje ontem amanhã não sim que quem todo todos cada muitos alguns há é era foi",
    "nl": "de het een deze dit die dat hij zij ze wij we jullie ik je u zijn haar ons onze mijn hun in op aan bij met "
    "naar van voor uit over onder om als toen terwijl sinds na daar hier dan daarna daarom dus maar en of ook nu "
    "vandaag gisteren morgen er geen niet nee ja wie wat waar waarom hoe wanneer alle veel sommige iedere elke is was "
    "heeft kan wordt",
    "ru": "он она оно они мы вы я ты это этот эта эти тот та те его её их наш ваш мой в во на с со к ко по от до из "
    "у о об за под при после перед когда пока если как что кто где почему но и а или то тогда там тут здесь затем "
    "потом поэтому также однако сегодня вчера завтра не нет да все всё каждый многие некоторые был была было были",
    "uk": "він вона воно вони ми ви я ти це цей ця ці той його її їх у в на з до по від після коли якщо як що хто де "
    "чому але і й а або тоді там тут потім тому також сьогодні не ні так усі був була було були",
    "pl": "on ona ono oni one my wy ja ty to ten ta te jego jej ich w we na z ze do od po przed przy kiedy gdy jeśli "
    "jak co kto gdzie dlaczego ale i a lub albo wtedy tam tu potem dlatego też dziś nie tak wszyscy był była było były",
    "sv": "den det de en ett han hon vi ni jag du man detta denna i på av för från med till om när där här då sedan "
    "men och eller så nu idag inte nej ja vad vem var varför alla många är var har",
    "da": "den det de en et han hun vi i jeg du man dette denne på af for fra med til om når der her da så men og "
    "eller nu ikke nej ja hvad hvem hvor hvorfor alle mange er var har",
    "nb": "den det de en et han hun vi dere jeg du man dette denne i på av for fra med til om når der her da så men og "
    "eller nå ikke nei ja hva hvem hvor hvorfor alle mange er var har",
    "cs": "on ona ono oni my vy já ty to ten ta ti jeho její v ve na s se z do od po před při když kdy jak co kdo kde "
    "proč ale a nebo pak potom tam tady proto také dnes ne ano všichni byl byla bylo byli je",
}
SUFFIXES = {"de": "str"}
"""Ends of words that are abbreviations within a sentence, as in `Hauptstr.`."""
SPEECH_VERBS = {"en": "said asked replied answered cried shouted whispered called added"}
"""Verbs after a speaker's name, as in `"Really?" Anna asked.`"""


class Rules(NamedTuple):
    """The rules of a language."""

    always: frozenset[str]
    """Abbreviations that end no sentence."""
    numeric: frozenset[str]
    """Abbreviations only before a number."""
    ending: frozenset[str]
    """Abbreviations that end a sentence before a starter."""
    starters: frozenset[str]
    """Words that often start a sentence."""
    suffixes: tuple[str, ...]
    """Ends of further abbreviations that end no sentence."""
    clitics: frozenset[str]
    """Words after an apostrophe that a sentence may start with."""
    ending_letters: frozenset[str]
    """Letters that are no abbreviations."""
    speech_verbs: frozenset[str]
    """Verbs after a speaker's name."""
    has_ordinals: bool
    """True if digits and a period may be an ordinal number."""


@cache
def rules(language: str) -> Rules:
    """Return the rules of a base language; those of all languages together if it has no entries."""
    return Rules(
        always=_words(ALWAYS, language),
        numeric=_words(NUMERIC, language),
        ending=_words(ENDING, language),
        starters=_words(STARTERS, language),
        suffixes=tuple(sorted(_words(SUFFIXES, language))),
        clitics=_words(LEADING_CLITICS, language),
        ending_letters=_words(ENDING_LETTERS, language),
        speech_verbs=_words(SPEECH_VERBS, language),
        has_ordinals=language in ORDINALS.split(),
    )


def _words(table: dict[str, str], language: str) -> frozenset[str]:
    languages = ("", language) if language in STARTERS else table
    return frozenset(word for code in languages for word in table.get(code, "").split())


def json_text() -> str:
    """Return the rules as JSON for the page, with the same names in lower case."""
    tables = {
        "always": ALWAYS,
        "numeric": NUMERIC,
        "ending": ENDING,
        "starters": STARTERS,
        "suffixes": SUFFIXES,
        "clitics": LEADING_CLITICS,
        "ending_letters": ENDING_LETTERS,
        "speech_verbs": SPEECH_VERBS,
        "ordinals": ORDINALS,
        "name_particles": NAME_PARTICLES,
    }
    return json.dumps(tables, ensure_ascii=False)
