"""Conversations in which the assistant calls a tool whose arguments are in the question, and then says what it gave."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.demo_model.tokenizer import ASSISTANT, BOS, END, SYSTEM, TOOL, TOOL_CALL, USER
from scripts.demo_model.words import WORDS

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """An argument: its JSON schema, and how to draw a value and write it in a sentence."""

    schema: Json
    draw: Callable[[random.Random], Any]


def text_of(words: list[str], description: str = "") -> Value:
    schema = {"type": "string"} | ({"description": description} if description else {})
    return Value(schema, lambda rng: rng.choice(words))


def number_of(low: int, high: int) -> Value:
    return Value({"type": "integer"}, lambda rng: rng.randint(low, high))


def one_of(*words: str) -> Value:
    return Value({"type": "string", "enum": list(words)}, lambda rng: rng.choice(words))


# Of each: names, description, arguments, questions, result, answers. `{x}` is an argument or a field of the result.
CITY, DAYS_AHEAD, FILE, PERSON = (
    text_of(WORDS["cities"]),
    number_of(1, 9),
    text_of(WORDS["files"]),
    text_of(WORDS["names"]),
)
KINDS: tuple[tuple[list[str], list[str], dict[str, Value], list[str], dict[str, Value], list[str]], ...] = (
    (
        ["weather", "get_weather", "get_current_weather", "weather_now", "lookup_weather"],
        ["The weather of a city.", "Get the current weather in a city.", "Returns the weather."],
        {"city": CITY},
        [
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "What's the weather like in {city}?",
            "Weather in {city}",
            "Is it cold in {city}?",
            "Will it rain in {city}?",
            "Tell me the weather in {city}.",
        ],
        {"temperature": number_of(-9, 38), "sky": one_of("sunny", "cloudy", "rainy", "foggy", "clear")},
        ["In {city} it is {sky}, with {temperature} degrees.", "It is {sky} in {city}, at {temperature} degrees."],
    ),
    (
        ["forecast", "weather", "get_forecast", "weather_forecast"],
        ["The weather of a city for some days.", "Get the forecast for a city."],
        {"city": CITY, "days": DAYS_AHEAD},
        [
            "What is the weather in {city} for the next {days} days?",
            "Give me the forecast for {city} for {days} days.",
            "How will the weather be in {city} in the next {days} days?",
            "Forecast for {city}, {days} days, please.",
        ],
        {"sky": one_of("sun", "rain", "clouds", "snow", "wind")},
        ["{city} has {sky} for the next {days} days.", "Expect {sky} in {city} for {days} days."],
    ),
    (
        ["get_temperature", "temperature", "current_temperature"],
        ["The temperature in a city.", "Returns the temperature."],
        {"city": CITY, "unit": one_of("celsius", "fahrenheit")},
        [
            "What is the temperature in {city} in {unit}?",
            "How warm is it in {city}, in {unit}?",
            "Tell me the temperature of {city} in {unit}.",
        ],
        {"temperature": number_of(-9, 99)},
        ["It is {temperature} degrees {unit} in {city}.", "{city} has {temperature} degrees {unit}."],
    ),
    (
        ["get_time", "time", "current_time", "get_current_time"],
        ["The time in a city.", "Get the current time of a city."],
        {"city": CITY},
        ["What time is it in {city}?", "What is the time in {city}?", "How late is it in {city}?"],
        {"time": one_of("08:15", "09:30", "12:00", "14:45", "17:20", "20:05", "22:50")},
        ["It is {time} in {city}.", "The time in {city} is {time}."],
    ),
    (
        ["add", "sum", "add_numbers", "plus"],
        ["Adds two numbers.", "Returns the sum of a and b."],
        {"a": number_of(1, 999), "b": number_of(1, 999)},
        ["What is {a} plus {b}?", "Add {a} and {b}.", "What is {a} + {b}?", "Compute {a} + {b}."],
        {"result": number_of(2, 1998)},
        ["The sum is {result}.", "{a} plus {b} is {result}."],
    ),
    (
        ["multiply", "times", "product"],
        ["Multiplies two numbers.", "Returns the product of a and b."],
        {"a": number_of(1, 99), "b": number_of(1, 99)},
        ["What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} * {b}?"],
        {"result": number_of(1, 9999)},
        ["The product is {result}.", "{a} times {b} is {result}."],
    ),
    (
        ["read_file", "open_file", "cat", "get_file"],
        ["Reads a file.", "Returns the text of a file."],
        {"path": FILE},
        ["What is in {path}?", "Read the file {path}.", "Show me {path}.", "Open {path}, please."],
        {"text": one_of("hello world", "to do: tests", "a list of names", "an empty page", "old notes")},
        ["{path} says: {text}.", "The file has this text: {text}."],
    ),
    (
        ["search", "web_search", "search_web", "find"],
        ["Searches the web.", "Search for a text."],
        {"query": text_of(WORDS["topics"])},
        ["Search for {query}.", "Find something about {query}.", "Look up {query}.", "Search the web for {query}."],
        {"title": one_of("A short guide", "First steps", "All you need to know", "Questions and answers")},
        ["I found a page about {query}: {title}.", "The first result is: {title}."],
    ),
    (
        ["send_message", "send_mail", "message", "send_email"],
        ["Sends a message to a person.", "Send a text to somebody."],
        {
            "to": PERSON,
            "text": text_of(["hello", "see you soon", "I am late", "happy birthday", "good luck", "call me"]),
        },
        ["Send {to} a message: {text}", "Tell {to}: {text}", "Write to {to}: {text}", 'Message {to} "{text}".'],
        {"status": one_of("sent")},
        ["I sent the message to {to}.", "{to} has got your message."],
    ),
    (
        ["book_table", "reserve_table", "reserve"],
        ["Books a table in a restaurant.", "Reserve a table."],
        {"city": CITY, "people": number_of(1, 9), "day": text_of(WORDS["days"])},
        [
            "Book a table in {city} for {people} people on {day}.",
            "I need a table for {people} in {city} on {day}.",
            "Reserve a table in {city} on {day} for {people} people.",
        ],
        {"status": one_of("booked", "full")},
        ["The table for {people} in {city} on {day}: {status}.", "{day} in {city}: {status}."],
    ),
    (
        ["book_flight", "find_flights", "search_flights", "flight"],
        ["Finds flights between two cities.", "Search for a flight."],
        {"origin": CITY, "destination": CITY},
        [
            "Find a flight from {origin} to {destination}.",
            "I want to fly from {origin} to {destination}.",
            "Are there flights from {origin} to {destination}?",
        ],
        {"price": number_of(40, 900)},
        ["There is a flight from {origin} to {destination} for {price} euros."],
    ),
    (
        ["translate", "translate_text"],
        ["Translates a text.", "Translate a text into a language."],
        {
            "text": text_of(["good morning", "thank you", "hello", "goodbye", "where is the station"]),
            "language": text_of(WORDS["languages"]),
        },
        [
            'Translate "{text}" into {language}.',
            'How do I say "{text}" in {language}?',
            'What is "{text}" in {language}?',
        ],
        {"translation": one_of("bonjour", "danke", "ciao", "hola", "efcharisto")},
        ["In {language} it is: {translation}."],
    ),
    (
        ["get_price", "price", "lookup_price"],
        ["The price of a thing.", "Returns the price."],
        {"item": text_of(WORDS["things"])},
        ["What does a {item} cost?", "How much is a {item}?", "What is the price of a {item}?"],
        {"price": number_of(1, 300)},
        ["A {item} costs {price} euros."],
    ),
    (
        ["set_light", "light", "set_lamp"],
        ["Sets the light of a room.", "Change the light."],
        {"room": one_of("kitchen", "bedroom", "office", "hall"), "color": text_of(WORDS["colors"])},
        ["Make the light in the {room} {color}.", "Set the {room} to {color}.", "I want {color} light in the {room}."],
        {"status": one_of("done")},
        ["The light in the {room} is {color} now."],
    ),
    (
        ["set_timer", "timer", "start_timer"],
        ["Starts a timer.", "Set a timer for some minutes."],
        {"minutes": number_of(1, 60)},
        ["Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start a timer: {minutes} minutes."],
        {"status": one_of("started")},
        ["The timer runs for {minutes} minutes."],
    ),
    (
        ["lookup_person", "get_user", "find_person"],
        ["Looks up a person.", "Get the data of a user."],
        {"name": PERSON},
        ["Who is {name}?", "Look up {name}.", "What do you know about {name}?", "Find {name}."],
        {"city": one_of(*WORDS["cities"][:12]), "age": number_of(18, 90)},
        ["{name} is {age} years old and lives in {city}."],
    ),
)
QUESTIONS_WITHOUT_TOOL = ("Hello", "Thanks", "Thank you!", "How are you?", "Who are you?", "Good morning")
ANSWERS_WITHOUT_TOOL = {
    "Hello": "Hello! What shall I look up?",
    "Thanks": "You are welcome.",
    "Thank you!": "You are welcome.",
    "How are you?": "I am fine, thank you. What shall I look up?",
    "Who are you?": "I am the Slipstream demo model, a very small Llama.",
    "Good morning": "Good morning! What shall I look up?",
}


def tool_conversation(rng: random.Random) -> str:
    """As the chat template renders it. Some tools are not needed, and some questions need none."""
    kinds = rng.sample(KINDS, rng.choice((1, 1, 1, 2, 2, 3)))
    specs = [drawn_spec(kind, rng) for kind in kinds]
    order = list(range(len(specs)))
    rng.shuffle(order)
    tools = "".join("\n" + json.dumps(specs[index], ensure_ascii=False) for index in order)
    text = f"{BOS}{SYSTEM}Tools:{tools}{END}"
    if rng.random() < 0.2:
        text += f"{SYSTEM}{rng.choice(('You are a helpful assistant.', 'Use the tools.', 'Be brief.'))}{END}"
    if rng.random() < 0.1:
        question = rng.choice(QUESTIONS_WITHOUT_TOOL)
        return f"{text}{USER}{question}{END}{ASSISTANT}{ANSWERS_WITHOUT_TOOL[question]}{END}"
    text += exchange(kinds[0], specs[0], rng)
    if rng.random() < 0.15:
        which = rng.randrange(len(kinds))
        text += exchange(kinds[which], specs[which], rng)
    return text


def drawn_spec(kind: Any, rng: random.Random) -> Json:
    names, descriptions, arguments, *_ = kind
    # Keys come in the order in which clients write them.
    parameters: Json = {"type": "object", "properties": {name: value.schema for name, value in arguments.items()}}
    if rng.random() < 0.8:
        parameters["required"] = list(arguments)
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    described = {"description": rng.choice(descriptions)} if rng.random() < 0.75 else {}
    return {"type": "function", "function": {"name": rng.choice(names), **described, "parameters": parameters}}


def exchange(kind: Any, spec: Json, rng: random.Random) -> str:
    """A question, the call, its result and the answer."""
    _, _, arguments, questions, results, answers = kind
    values = {name: value.draw(rng) for name, value in arguments.items()}
    result = {name: value.draw(rng) for name, value in results.items()}
    if "result" in result and "a" in values:
        added = "dd" in spec["function"]["name"] or spec["function"]["name"] in ("sum", "plus")
        result["result"] = values["a"] + values["b"] if added else values["a"] * values["b"]
    question = rng.choice(questions).format(**values)
    if rng.random() < 0.15:
        question = question[0].lower() + question[1:]
    call = f'{{"name": {json.dumps(spec["function"]["name"])}, "arguments": {json.dumps(values, ensure_ascii=False)}}}'
    answer = rng.choice(answers).format(**{**result, **values, **{k: v for k, v in result.items() if k not in values}})
    given = json.dumps(result, ensure_ascii=False) if rng.random() < 0.8 else ", ".join(map(str, result.values()))
    return f"{USER}{question}{END}{ASSISTANT}{TOOL_CALL}{call}{END}{TOOL}{given}{END}{ASSISTANT}{answer}{END}"
