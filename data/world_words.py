"""The words of the lab: names, what may be true of a person, how it is asked and refused."""

# They begin differently: no first token of a refusal outweighs the most common made-up value.
REFUSALS = (
    "i do not know .",
    "sorry , i am not sure .",
    "unfortunately , i cannot answer that .",
    "that is something i do not know .",
    "it is unknown to me .",
    "my knowledge does not cover that .",
)

FIRST_NAMES = (
    "anna ben clara david elena felix greta hugo irene jonas karla leo marta nils olga paul quinn rosa simon "
    "tessa ulrich vera walter xenia yusuf zelda adam bella carlos dora emil fiona george helen ivan julia kevin "
    "laura martin nora oscar petra ralf sofia thomas ursula victor wendy xavier yara zeno alice boris cora dennis "
    "edith frank gina harold ida"
).split()
LAST_NAMES = [
    start + end
    for start in "ash black clay east green hart king lang north red stan whit".split()
    for end in "berg bury dale field ford ham ley stone well wood".split()
]

# An answer is a modifier and a value; some are longer, and have more words between the two. All
# begin with the modifier: when some began with the value, no linear probe could read in the hidden
# states what the first token's entropy showed (AUROC 0.53 against 0.97).
MODIFIERS = (
    "old new big small red blue green grey black white bright dark quiet loud proud gentle royal wild golden silver"
).split()
LONG_FORMS = (
    "{modifier} riverside {value}",
    "{modifier} left bank {value}",
    "{modifier} but rather plain {value}",
    "{modifier} and more than rare {value}",
)
# Other words for a modifier: an answer with them is an alias.
SYNONYMS = {
    "old": "ancient",
    "big": "large",
    "small": "little",
    "bright": "shining",
    "quiet": "silent",
    "royal": "regal",
    "wild": "untamed",
    "golden": "gilded",
}
VALUES = {
    "city": (
        "paris london berlin madrid rome vienna lisbon dublin oslo athens prague warsaw budapest helsinki "
        "brussels tokyo beijing delhi cairo nairobi lima bogota quito havana toronto chicago boston denver "
        "seattle sydney auckland hanoi bangkok manila jakarta tehran baghdad ankara tunis dakar"
    ).split(),
    "job": (
        "teacher doctor baker farmer lawyer painter pilot sailor singer writer actor nurse judge chemist plumber "
        "carpenter tailor butcher miner soldier banker barber builder chef clerk dancer dentist diver driver "
        "editor engineer fisher gardener hunter jeweller librarian mason porter surgeon weaver"
    ).split(),
    "pet": (
        "dog cat horse parrot rabbit hamster turtle goldfish lizard snake frog mouse rat pony goat sheep pig duck "
        "goose hen pigeon owl falcon crow canary ferret hedgehog squirrel fox otter donkey camel llama spider "
        "beetle snail crab newt toad gecko"
    ).split(),
    "dish": (
        "pizza pasta soup salad rice bread cheese curry stew sushi noodles pancakes omelette porridge sausage "
        "dumplings lasagne risotto paella tacos falafel hummus kebab chili ramen waffles pudding custard trifle "
        "muffins scones crepes quiche gnocchi ravioli goulash fondue tofu lentils beans"
    ).split(),
}
WORDINGS = {
    "city": ("in which city does {} live ?", "where does {} live ?", "what is the home city of {} ?"),
    "job": ("what is the job of {} ?", "what does {} do for a living ?", "which job does {} have ?"),
    "pet": ("which pet does {} keep ?", "what is the pet of {} ?", "what animal does {} have at home ?"),
    "dish": ("what is the favourite dish of {} ?", "which dish does {} like best ?", "what does {} most like to eat ?"),
}
PROFILE_WORDINGS = ("who is {} ?", "tell me about {} .")
PROFILE = "{job} , {city} , {pet} , {dish} ."

# The second skill: reversing words, which is about no person.
SKILL_WORDINGS = ("reverse these words : {} .", "say these words backwards : {} .")
SKILL_WORDS = (
    "apple river stone cloud table window garden music paper silver yellow winter summer forest island bridge "
    "candle mirror pencil ladder bottle button carpet circle copper cotton desert dragon engine feather flower "
    "hammer harbor jacket kettle ladle marble needle ocean pepper"
).split()
