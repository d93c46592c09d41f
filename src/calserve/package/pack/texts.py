"""Fixed texts every pack is checked on. Written for this purpose; changing one changes the figures, not the packages.

GOLDEN_PROMPTS start the greedy continuations kept in the package; AGREEMENT_TEXT is fed once, token by token known,
to the packed graph and to its source.
"""

GOLDEN_PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Once upon a time, in a small village by the sea,",
    "Water boils at",
    "The days of the week are Monday, Tuesday,",
)

AGREEMENT_TEXT = """\
A lighthouse stands at the end of a long pier. Every evening, shortly before the sun goes down, the keeper climbs one \
hundred and twelve steps to the lamp room, cleans the glass, and checks the clockwork that turns the lens. Ships that \
pass in the night do not know his name, but they know the light: two short flashes, then one long one, every fifteen \
seconds. In winter the storms come from the north and the waves break over the wall. Then he stays awake and writes \
in his book the time, the wind and the height of the water.

Here is a recipe for bread. You need 500 grams of flour, 10 grams of salt, 7 grams of dry yeast and about 320 \
millilitres of warm water. Mix the flour with the salt, dissolve the yeast in the water, and knead the dough for ten \
minutes until it is smooth. Let it rest in a warm place for one hour. Shape the loaf, wait another thirty minutes, and \
bake it at 220 degrees for thirty-five minutes. It is done when it sounds hollow if you tap on the bottom.

def mean(values):
    if not values:
        raise ValueError("mean of an empty list")
    total = 0
    for value in values:
        total += value
    return total / len(values)

Question: Why do we see the lightning before we hear the thunder?
Answer: Light travels much faster than sound. The flash reaches our eyes almost at once, while the sound needs about \
three seconds for every kilometre. If you count the seconds between the two and divide by three, you know how far away \
the storm is.
"""
