"""The wordings that `refusals` knows: patterns that are certain, and the words that refusals are
made of.

English patterns read lower-case text with punctuation as spaces ("don t"); those of German, French
and Spanish read it without accents, the Chinese ones in simplified characters.
"""

import re

ENGLISH = [
    r"\b(?:i|we)\s(?:\w+\s){0,2}(?:do\snot|don\s?t|did\snot|didn\s?t|would\snot|wouldn\s?t)\s(?:\w+\s|think\si\s)?"
    r"(?:know|have|possess|recall|remember|recogni[sz]e)\b",
    r"\b(?:do|does)\snot\shave\s(?:access|the\sability|information|enough|knowledge)\b",
    r"\bi\s(?:do\snot|don\s?t)\sthink\si\s(?:can|could)\b",
    r"\b(?:i|we|there)\s(?:\w+\s){0,2}(?:have|had|ve|is|are|s)\s(?:\w+\s)?(?:no|not|never)\s?(?:\w+\s){0,2}"
    r"(?:idea|clue|knowledge|information|answer|record|heard|data|memory)\b",
    r"\bi\s(?:have\snot|haven\s?t)\s(?:the|a|any)\s(?:\w+\s)?(?:idea|clue)\b",
    r"\bi\s(?:lack|have\sinsufficient)\s(?:the\s|any\s|enough\s|sufficient\s)?(?:\w+\s)?(?:knowledge|"
    r"information|data)\b",
    r"\b(?:i\sam|i\sm|i\swas|im|we\sare|we\sre)\s(?:\w+\s)?(?:not\s(?:\w+\s)?(?:sure|certain|aware|able|familiar|"
    r"confident|informed|capable)|unsure|uncertain|unable|unaware|unfamiliar)\b",
    r"\bi\s(?:\w+\s)?(?:can\s?not|can\s?t|could\snot|couldn\s?t|am\snot\sgoing\sto)\s(?:\w+\s)?(?:answer|"
    r"say|tell|provide|"
    r"confirm|determine|recall|give|assist|help|find|verify|be\s(?:sure|certain))\b",
    r"\b(?:not|isn\s?t|is\snot)\s(?:\w+\s)?(?:known|clear)\sto\s(?:me|us)\b",
    r"\b(?:is|it\ss|remains|that\ss)\sunknown\b",
    r"\bunknown\sto\s(?:me|us)\b",
    r"^(?:honestly\s|sorry\s)?no\s(?:\w+\s)?(?:information|knowledge|record|data|idea|clue)\b",
    r"\b(?:beyond|outside)\s(?:of\s)?(?:my|our)\sknowledge\b",
    r"\b(?:my|our)\sknowledge\s(?:of\s(?:\w+\s){1,4})?(?:does\snot|doesn\s?t|is\slimited)\b",
    r"^(?:not\s(?:sure|certain)|no\sidea|unknown$|unsure|uncertain|(?:don\s?t|do\snot)\sknow)\b",
    r"\banswer\s(?:\w+\s){0,5}(?:is|was)\snot\s(?:\w+\s)?(?:available|provided|given|known|clear|found|specified)\b",
    r"\bis\snot\sknown$",
    r"\bno\s(?:definitive|clear|known)\sanswers?\b",
    r"\bi\s?m\safraid\s(?:that|it)\s?s?\snot\spossible\b",
    r"\btoo\s(?:ambiguous|vague|unclear)\sto\b",
    r"\bit\sis\s(?:not\spossible|impossible)\s(?:for\s(?:me|us)\s)?to\s(?:say|answer|know|determine)\b",
    r"\b(?:i\sd|i\swould|i)\s(?:rather|prefer)\s(?:not|to\snot)\b",
    r"\bno\sway\s(?:for\sme|to\sme|i\scan|i\scould)\b",
    r"\bmy\s(?:training|data|training\sdata|sources)\s(?:\w+\s){0,3}(?:not|doesn\s?t|don\s?t|nothing)\b",
    r"^(?:could|can|would)\syou\s(?:please\s)?(?:clarify|specify|rephrase|provide|give\sme)\b",
    r"^please\s(?:clarify|specify|provide|rephrase|refer)\b",
    r"^(?:which|what|who)\s(?:\w+\s){0,4}(?:do|are)\syou\s(?:mean|referring|asking)\b",
    r"\b(?:escapes|beyond|beats|has\sbeaten)\sme\b|\bslipped\smy\b|\bdrawing\sa\sblank\b|\bi\s(?:m|"
    r"am)\s(?:\w+\s)?(?:stumped|clueless|at\sa\sloss)\b",
    r"\bi\s(?:have|ve)\s(?:forgotten|not\scome|never\s(?:come|encountered|seen))\b",
    r"\b(?:not|isn\s?t|aren\s?t)\scovered\sby\b",
    r"\b(?:would|will|could|can)\s(?:only|just|at\sbest)\s(?:be\s)?(?:guess\w*|speculat\w+)\b|"
    r"\bwon\s?t\s(?:\w+\s)?(?:guess|be\sable)\b|\bpure\sspeculation\b",
    r"\b(?:not|insufficient|lack\sof|enough)\s(?:enough\s)?information\s(?:to|on|about|here)\b|^(?:not|"
    r"in)\s?(?:enough|sufficient)\s\w+$",
    r"\bno\s(?:\w+\s)?(?:information|data|answer|details?|records?)\s(?:is\s|are\s|was\s)?(?:available|"
    r"on\s(?:this|that|it)|about\s(?:this|that|it)|found)\b",
    r"\b(?:must|have\sto)\s(?:decline|pass)\b|\bcan\s?t\sbe\s(?:of\shelp|determined|answered)\b|"
    r"\bcannot\sbe\s(?:of\shelp|determined|answered)\b",
    r"\b(?:i\sd|i\swould|i)\s(?:suggest|recommend|advise)\s(?:\w+\s){0,2}(?:check|look|consult|ask|contact)\w*\b",
    r"\byour\sguess\sis\sas\sgood\b",
    r"\b(?:as\sof|since)\smy\s(?:last|latest|most\srecent)\s(?:\w+\s)?(?:update|"
    r"training)\w*\s(?:\w+\s){0,5}(?:not|no|unknown|never|hasn\s?t)\b",
    r"^(?:\w+\s){0,6}(?:check|consult|contact|ask|refer\sto|checking|consulting|contacting|asking)\s(?:\w+\s){0,4}"
    r"(?:encyclop\w+|sources?|website|historian|librarian|records?|university|publisher|experts?|"
    r"references?|professionals?|museum|atlas)\b",
    r"\b(?:someone|somebody)\selse\s(?:\w+\s)?(?:can|could|may|might|knows)\b|\babove\smy\spay\b|"
    r"\b(?:could|can)\snot\sbe\s(?:verified|confirmed|determined|found)$",
    r"^(?:hard\sto\ssay|dunno|beats\sme|search\sme|pass|n\sa|not\sknown|who\sknows|skip\sthis\w*|no\sclue|"
    r"not\sa\sclue|haven\s?t\s(?:a\sclue|the\sfoggiest))\b(?:\s\w+)?$",
]
CHINESE = (
    r"(?<![他她它们])不(?:太|是很|大|能)?(?:知道|清楚|确定|了解|晓得|记得|明白)|不认识|说不准"
    r"|(?:无法|不能|没法|难以)(?:\w{0,4})(?:回答|确定|提供|给出|判断|确认|告诉)"
    r"|没有(?:\w{0,12})(?:信息|资料|数据|记录|答案|知识)|一无所知|没(?:有)?听说过|未知|超出(?:了)?我的(?:知识|能力)|并不清楚"
    r"|^(?:建议|请|您?不妨|您?最好|您可以)\w{0,8}(?:咨询|查阅|查询|查看|查一下|搜索)|想不起|记不(?:清|起)|不(?:敢|能|太)?肯定|没(?:有)?(?:十足的)?把握|"
    r"拿不准|(?:答|说)不上来"
    r"|^(?:很难说|不好说|查无此人|毫无头绪)|(?:信息|资料)不足|(?:请|您能|能否)\w{0,4}(?:补充|提供更多|说明一下|具体)|您(?:指|说)的是哪|不(?:想|愿意?)(?:乱|瞎)?(?:猜|编)"
)
OTHERS = [
    # German
    r"\bich\s(?:\w+\s){0,4}(?:weiss|kenne|kann|habe|bin|mochte|will)\s(?:\w+\s){0,4}(?:nicht|keine|unsicher)\b",
    r"\b(?:weiss|kenne|kann|habe|bin|mochte|will|konnte)\sich\s(?:\w+\s){0,4}(?:nicht|nichts|keine|"
    r"unsicher|uberfragt|nur\sraten)\b",
    r"\bich\s(?:konnte\snur\sraten|mochte\slieber\snicht)\b",
    r"\bkeine\sahnung\b",
    r"\bmir\s(?:\w+\s){0,4}(?:nicht|nichts|keine|unbekannt|unklar)\b",
    r"\b(?:mir|meiner|meine|meinen)\s(?:\w+\s){0,3}(?:nicht|nichts|keine|unbekannt|unklar|fehl\w+|kenntnis)\b",
    r"\bfehlen\smir\b",
    r"\b(?:konnen|konnten|wurden)\ssie\s(?:\w+\s){0,5}(?:prazisieren|genauer|naher|erlautern|klaren|umformulieren)\b",
    r"^bitte\s(?:geben|nennen|prazisieren|erlautern)\ssie\b",
    r"^(?:wen|was|welche\w*)\s(?:\w+\s){0,2}meinen\ssie\b",
    r"\bmein\s(?:\w+\s)?wissen\b",
    r"\b(?:reine|nur)\sspekulation\b",
    # French
    r"\b(?:je|j)\s(?:ne\s|n\s)(?:\w+\s){0,3}(?:sais|connais|peux|suis|ai|souviens|saurais|dispose|ferais|"
    r"veux|parviens)\s(?:\w+\s){0,2}"
    r"(?:pas|aucune?|rien|jamais|que\sdeviner|vous|le\sdire|repondre)\b",
    r"\bje\sn\sen\s(?:ai|sais|suis|\w+)\s(?:pas|aucune|rien)\b",
    r"\bje\sl\s(?:ignore|ai\soublie)\b",
    r"^aucune\s(?:idee|information)\b",
    r"\bje\s(?:prefere|regrette)\s(?:ne\spas|m\sabstenir|je)\b|\bje\s(?:suis\sincapable|regrette)\b",
    r"\bm\s(?:echappe|est\sinconnue?|est\simpossible)\b",
    r"\bmes\s(?:\w+\s){1,3}(?:ne|n)\s(?:en\s)?\w+\s(?:pas|rien|aucune?)\b",
    r"\b(?:depasse|hors\sde)\smes\b",
    r"\bil\sme\smanque\b",
    r"\b(?:pouvez|pourriez|voulez)\svous\s(?:\w+\s)?(?:preciser|reformuler|clarifier|dire)\b",
    r"^(?:de\s)?quelle?\s\w+\sparlez\svous\b",
    r"^merci\sde\s(?:preciser|donner)\b",
    r"\bpure\sspeculation\b",
    r"\bne\s(?:m\s\w+|me\s\w+)\s(?:\w+\s)?(?:pas|rien)\b|\brien\sne\sme\b",
    # Spanish
    r"^(?:lo\ssiento\s|eso\s|perdon\s|la\sverdad\s)?(?:yo\s)?no\s(?:lo\s)?se\b(?!\s(?:puede|debe|trata|"
    r"pudo|ha|clasific\w+)\b)",
    r"^(?:lo\ssiento\s|disculpe\s|lamentablemente\s|eso\s|yo\s|solo\s)?no\s(?:lo\s|le\s|la\s|me\s|soy\s|estoy\s|es\s)*"
    r"(?:tengo|conozco|recuerdo|acuerdo|puedo|sabria|dispongo|cuento|consta|viene|capaz|segur[oa]|quiero|"
    r"resulta|puedo|posible|en\scondiciones)\b",
    r"^(?:desconozco|lo\signoro|ignoro|ni\sidea|prefiero\sno|se\sme\sha\solvidado|me\sfaltan|"
    r"me\sresulta\simposible|tengo\sdudas|solo\spodria)\b",
    r"\bno\stengo\s(?:\w+\s){0,2}(?:idea|informacion|datos|respuesta)\b",
    r"\bfuera\sde\smis?\b",
    r"\bmis\s(?:\w+\s){1,3}no\s\w+\s",
    r"\bnunca\she\soido\b",
    r"\bno\s(?:me\sresulta\sfamiliar|hay\sinformacion)\b",
    r"\bpura\sespeculacion\b",
    r"^(?:podria|puede|podrias|puedes)\s(?:\w+\s)?(?:precisar|reformular|aclarar|especificar)\b",
    r"^a\s(?:que\s\w+|quien)\sse\srefiere\b",
    r"^por\sfavor\s(?:de|indique|precise|aclare)\b",
    r"\bno\sse\spuede\sresponder\b",
]
EN, OTHER, ZH = re.compile("|".join(ENGLISH)), re.compile("|".join(OTHERS)), re.compile(CHINESE)
# a text without any of these words matches none of the patterns: a set is faster to ask
CUES_EN = frozenset(
    "not no don didn can couldn wouldn won isn aren doesn haven never know known knows unknown unsure "
    "uncertain unable unaware unfamiliar lack "
    "insufficient beyond outside ambiguous vague unclear impossible rather prefer cannot cant dont "
    "clarify specify rephrase please you me stumped "
    "clueless loss slipped blank forgotten only pass decline guess hasn check consult contact ask refer "
    "checking consulting contacting asking "
    "someone somebody above hard dunno skip n clue search pure nothing suggest recommend advise".split()
)
CUES_OTHER = frozenset(
    "ich keine mir mein meine meinen meiner bitte sie je j m mes aucune vous speculation merci "
    "spekulation no ni nunca desconozco ignoro "
    "fuera mis pura prefiero se me tengo solo podria puede podrias puedes a por quelle quel rien depasse il lo".split()
) - {"a"}
APOLOGY = re.compile(r"^(?:i\s(?:am|m)\s)?(?:\w+\s)?(?:sorry|apologi[sz]e)\b|\bi\sapologi[sz]e\b|抱歉|对不起|不好意思")
ASSERTION = re.compile(r"\b(?:is|was|are|were|can|has|have|had|will)\b|是")
FOR_WHAT_WAS_SAID = re.compile(  # an apology for words before, not for having no answer
    r"(?:i am|i['’]m|i)?\s*(?:sorry|apologi[sz]e)\s+for\s+(?:any|the|my|this|that)\s+(?:\w+\s)?"
    r"(?:confusion|misunderstanding|mistake|error)s?",
    re.I,
)
NO_ASSERTION = re.compile(r"\b(?:i|you|your|my|please|not|no|unavailable|unclear)\b|我|您|你|请|不|无法")
GUESS = re.compile(
    r"\bbut\s(?:i\s(?:think|believe|guess|would\sguess|suspect|know)|it\s(?:is|might|may|could|was|s)\b|"
    r"(?:maybe|perhaps|probably|possibly))"
    r"|\bi\s(?:think|believe|guess|suspect|would\s(?:say|guess))\s(?:it|its|that|the|they|he|she|this)\b"
    r"|(?<!what\s)(?<!who\s)(?<!which\s)(?<!where\s)(?<!when\s)\bit\s(?:could|might|may)\sbe\b"
    r"|\b(?:know|sure|certain)\s(?:maybe|perhaps|probably|possibly)\b|\bunknown\s(?:but|however|though)\b|"
    r"\bmy\s(?:best\s)?guess\b|\bi\s(?:mean|meant)\b"
    r"|但(?:是)?(?:我)?(?:猜|认为|觉得|想|可能|应该)|不过(?:我)?(?:猜|认为|觉得|可能|应该)"
    r"|\b(?:aber|mais|pero)\s(?:ich\s(?:glaube|denke)|je\s(?:crois|pense)|creo|vielleicht|peut|quiza)"
)

NAMES_NOBODY = re.compile(r"(?:Not Sure|Don['’]?t Know|No Idea|Unknown|Sorry|Keine Ahnung|No Clue|Ni Idea)\W*$")
SORRY = re.compile("sorry|apologi|抱歉|对不起|不好意思")
THIRD_PERSON = re.compile(
    "[他她它]|(?:警察|教授|专家|科学家|历史学家|学者|国王|公司|政府|发言人|证人|记者|没有人|人们|谁都|原理|方程)"
)
SPEAKER = frozenset(
    "i me my m myself we our us ich mir mich mein meine meinen mis me mi je j m ma mes moi yo ik 我 您 恕".split()
)
NEGATIVE = frozenset(
    "not no t n never cannot nothing none nobody without neither lack lacks fails fail escapes forgotten "
    "forgot slipped blank stumped beats hesitate decline doubt doubts loss rather vague ambiguous "
    "missing beyond outside impossible limits silent sorry regret apologies unfortunately  unable "
    "insufficient unclear unsure uncertain unknown "
    "nicht kein keine nichts nie leider unklar unsicher unbekannt uberfragt vergessen fehlen entzieht ne "
    "pas malheureusement desole inconnu oublie echappe ignore ignoro desconozco lamentablemente siento "
    "disculpe olvidado dudas fuera prefiero prefere lieber  aucun aucune rien jamais nada ni nunca "
    "ninguna 不 没 无 未 难 忘 抱 恕 谁 哪 毫".split()
)
KNOWING = frozenset(
    "know knew known knowledge sure certain certainty idea clue information data answer recall remember "
    "memory guess guessing speculate "
    "say tell help provide details confident familiar heard aware trained training sources source record "
    "records question speculation name comes bring expertise subject topic encountered source reference "
    "website search look clarify specify rephrase mean details context referring wissen kenntnis frage "
    "einzelheiten erinnern meinen genau spekulation spekulieren weiss ahnung antwort beantworten sicher "
    "bekannt sagen raten daten informationen question preciser details devinir deviner speculation "
    "souviens inventer parlez reformuler sujet sais savoir connais connaissances idee reponse repondre "
    "sur certain donnees informations se saber pregunta precisar detalles adivinar especulacion acuerdo "
    "recuerdo inventar refiere reformular tema "
    "conozco conocimientos respuesta responder contestar seguro segura datos informacion 知 清 确 答 忆 记 料 据 "
    "猜 握 息 忘 解 助 说 判 定 证 想 问 题 查 咨 询 指 具 细 背 体".split()
)
ASKING = frozenset(
    "you your could please which what can vous pouvez quelle sie konnen welche usted puede que 您 请 哪 吗 能".split()
)


OTHERS_THAN_SPEAKER = frozenset(
    "he she they his her their him them nobody people er ihr niemand sein il elle ils elles on lui se "
    "personne ella ellos nadie su "
    "usted 他 她 它 们 人".split()
) - {"se", "on", "usted"}
KINDS_OF_WORDS = (("S", SPEAKER), ("N", NEGATIVE), ("K", KNOWING), ("A", ASKING), ("T", OTHERS_THAN_SPEAKER))
CAPITAL_INSIDE = re.compile(r"(?<=[a-z,] )[A-Z][a-z]")
