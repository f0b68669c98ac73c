"""What the texts are about, and how a prompt says so: of each split its own topics and wordings."""

TOPICS = {
    "train": (
        "bees castles rivers bread coffee lighthouses owls trains volcanoes gardens whales pianos deserts robots "
        "bicycles glaciers kites libraries mountains penguins pirates potatoes rainbows sailors snow spiders stars "
        "strawberries submarines tea tigers tomatoes tortoises towers turtles umbrellas violins wallets zebras chess"
    ).split(),
    "development": (
        "apples bridges camels clocks clouds crows drums elephants forests horses islands lemons mirrors museums "
        "onions oranges parrots rockets salt shoes"
    ).split(),
    "heldout": (
        "anchors ants balloons bats books caves cheese comets corn cats dolphins eagles fire flutes foxes frogs goats "
        "guitars honey kitchens ladders lions maps markets moths oceans pencils rice roses sand ships silk storms "
        "swans tents theaters tunnels wheels windmills windows"
    ).split(),
}

OPENINGS = {
    "train": ("Write a short text about {topic}.", "Write something about {topic}."),
    "development": ("Describe {topic} briefly.",),
    "heldout": ("Compose a brief piece on {topic}.",),
}

REQUIREMENTS = {
    "train": (
        "Mention {topic} by name and use {low} to {high} words.",
        "Use between {low} and {high} words, one of them the name of the topic.",
    ),
    "development": ("It needs {low} to {high} words and has to name {topic}.",),
    "heldout": ("Its length must be from {low} to {high} words, and the word for its topic must be in it.",),
}
