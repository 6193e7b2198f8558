"""Names and words that tasks are filled with."""

from __future__ import annotations

CITIES = """Rome Bonn Paris London Berlin Madrid Vienna Oslo Tokyo Lisbon Dublin Prague Athens Cairo Boston Chicago Seattle
Denver Austin Toronto Sydney Delhi Seoul Munich Hamburg Milan Naples Zurich Geneva Warsaw Helsinki Stockholm Brussels Lyon
Nairobi Lima Bogota Jakarta Hanoi Manila Kyoto Osaka Dallas Miami Houston Moscow Kiev Riga Porto Cologne""".split()
NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tom Ursula Victor Wendy
Ada Alan Bob Carol Dana Eric Fiona George Hannah Ivan Julia Karl Laura Maria Nina Oscar Peter Ruth Simon Tina""".split()
JOBS = "teacher engineer doctor baker farmer pilot nurse painter writer cook lawyer singer".split()
FRUITS = "apple banana pear plum cherry orange lemon peach grape melon".split()
COLORS = "red green blue yellow black white orange purple brown pink".split()
ANIMALS = "cat dog horse cow bird fish mouse rabbit fox bear".split()
THINGS = "book lamp chair table phone bottle bag clock pen cup shoe hat ring key".split()
FILES = "notes.txt data.csv report.md main.py config.yaml todo.txt log.txt index.html readme.md setup.py".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LANGUAGES = "English French German Italian Spanish Greek Dutch Polish".split()
TOPICS = """history of Rome; black holes; green tea; electric cars; jazz music; sea turtles; chess openings; bread recipes;
solar power; old maps; python tutorials; mountain bikes; ancient Greece; coffee beans; deep sea fish""".replace(
    "\n", " "
).split("; ")
