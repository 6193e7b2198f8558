"""Short functions that people ask for first, composed from families, so that far more of them are seen than written."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WrittenFunction:
    """A function, what it does in the third person ("returns the sum of a list"), and how it works in a sentence."""

    name: str
    does: str
    source: str
    how: str


def function(name: str, arguments: str, does: str, body: str, how: str, rng: random.Random) -> WrittenFunction:
    """With a docstring or, seldom, without."""
    sentence = does[0].upper() + does[1:] + "."
    doc = f'    """{imperative(sentence)}"""\n' if rng.random() < 0.75 else ""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return WrittenFunction(name, does, f"def {name}({arguments}):\n{doc}{lines}", how)


def imperative(sentence: str) -> str:
    """`Returns the sum.` becomes `Return the sum.`"""
    verb, _, rest = sentence.partition(" ")
    if verb.endswith("ies"):
        verb = verb[:-3] + "y"
    elif verb.endswith(("shes", "ches", "xes", "sses")):
        verb = verb[:-2]
    elif verb.endswith("s"):
        verb = verb[:-1]
    return f"{verb} {rest}"


# Text of the condition, its expression for `x`, a word for names.
CONDITIONS = (
    ("even", "{x} % 2 == 0", "even"),
    ("odd", "{x} % 2 == 1", "odd"),
    ("positive", "{x} > 0", "positive"),
    ("negative", "{x} < 0", "negative"),
    ("not zero", "{x} != 0", "nonzero"),
)
LIST_NAMES = (("numbers", "number"), ("values", "value"), ("items", "item"))
POWERS = (("squares", "{x} * {x}", "squares"), ("cubes", "{x} ** 3", "cubes"), ("doubles", "2 * {x}", "doubles"))


def condition_of(rng: random.Random) -> tuple[str, str, str]:
    """Text, expression of `x`, word for a name."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(CONDITIONS)
    n = rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 50, 100))
    if kind < 0.7:
        return f"divisible by {n}", f"{{x}} % {n} == 0", f"divisible_by_{n}"
    if kind < 0.85:
        return f"greater than {n}", f"{{x}} > {n}", f"greater_than_{n}"
    return f"less than {n}", f"{{x}} < {n}", f"less_than_{n}"


def about_numbers(rng: random.Random) -> WrittenFunction:
    """A list of numbers, a condition and what is done with those that fulfil it."""
    items, item = rng.choice(LIST_NAMES)
    text, expression, word = condition_of(rng)
    test = expression.format(x=item)
    a_list = f"a list of {items}"
    choices = (
        (f"keep_{word}", f"returns the {items} of a list that are {text}", f"return [{item} for {item} in {items} if {test}]", f"It keeps each {item} that is {text}."),
        (f"filter_{word}", f"filters {a_list} and keeps those that are {text}", f"return [{item} for {item} in {items} if {test}]", f"It keeps each {item} that is {text}."),
        (f"remove_{word}", f"removes the {items} that are {text} from a list", f"return [{item} for {item} in {items} if not {test}]", f"It keeps each {item} that is not {text}."),
        (f"count_{word}", f"counts the {items} in a list that are {text}", f"return sum(1 for {item} in {items} if {test})", f"It adds one for each {item} that is {text}."),
        (f"sum_{word}", f"returns the sum of the {items} in a list that are {text}", f"return sum({item} for {item} in {items} if {test})", f"It adds each {item} that is {text}."),
        (f"all_{word}", f"checks whether all {items} in a list are {text}", f"return all({test} for {item} in {items})", f"It is true if each {item} is {text}."),
        (f"any_{word}", f"checks whether any of the {items} in a list is {text}", f"return any({test} for {item} in {items})", f"It is true if one {item} is {text}."),
        (f"first_{word}", f"returns the first of the {items} in a list that is {text}, or None", f"for {item} in {items}:\n    if {test}:\n        return {item}\nreturn None", f"It goes through the list and returns the first {item} that is {text}."),
        (f"is_{word}", f"checks whether a number is {text}", f"return {expression.format(x='number')}", f"It is true if the number is {text}."),
    )  # fmt: skip
    name, does, body, how = rng.choice(choices)
    return function(name, "number" if name.startswith("is_") else items, does, body, how, rng)


def about_powers(rng: random.Random) -> WrittenFunction:
    items, item = rng.choice(LIST_NAMES)
    text, expression, word = rng.choice(POWERS)
    power = expression.format(x=item)
    choices = (
        (word, items, f"returns the {text} of a list of {items}", f"return [{power} for {item} in {items}]", f"It computes {power} for each {item}."),
        (f"sum_of_{word}", items, f"returns the sum of the {text} of a list of {items}", f"return sum({power} for {item} in {items})", f"It adds {power} for each {item}."),
        (word, "n", f"returns the {text} of the numbers from 1 to n", f"return [{expression.format(x='i')} for i in range(1, n + 1)]", f"It computes {expression.format(x='i')} for each i from 1 to n."),
    )  # fmt: skip
    return function(*rng.choice(choices), rng)


UNITS = (
    ("celsius", "fahrenheit", "celsius * 9 / 5 + 32"),
    ("fahrenheit", "celsius", "(fahrenheit - 32) * 5 / 9"),
    ("kilometres", "miles", "kilometres / 1.609"),
    ("miles", "kilometres", "miles * 1.609"),
    ("hours", "minutes", "hours * 60"),
    ("minutes", "seconds", "minutes * 60"),
    ("seconds", "minutes", "seconds / 60"),
    ("metres", "centimetres", "metres * 100"),
    ("kilograms", "grams", "kilograms * 1000"),
    ("grams", "kilograms", "grams / 1000"),
    ("days", "hours", "days * 24"),
    ("weeks", "days", "weeks * 7"),
    ("bytes", "kilobytes", "bytes / 1024"),
    ("inches", "centimetres", "inches * 2.54"),
)
SHAPES = (
    ("rectangle", "width, height", "area", "width * height"),
    ("rectangle", "width, height", "perimeter", "2 * (width + height)"),
    ("square", "side", "area", "side * side"),
    ("square", "side", "perimeter", "4 * side"),
    ("circle", "radius", "area", "3.14159 * radius * radius"),
    ("circle", "radius", "circumference", "2 * 3.14159 * radius"),
    ("triangle", "base, height", "area", "base * height / 2"),
    ("cube", "side", "volume", "side ** 3"),
    ("box", "width, height, depth", "volume", "width * height * depth"),
)


def about_units(rng: random.Random) -> WrittenFunction:
    if rng.random() < 0.5:
        source, target, formula = rng.choice(UNITS)
        return function(f"{source}_to_{target}", source, f"converts {source} to {target}", f"return {formula}", f"It computes {formula}.", rng)  # fmt: skip
    shape, arguments, what, formula = rng.choice(SHAPES)
    return function(f"{shape}_{what}", arguments, f"returns the {what} of a {shape}", f"return {formula}", f"It computes {formula}.", rng)  # fmt: skip


NUMBER_WORDS = {2: "two", 3: "three", 4: "four"}
OPERATIONS = (
    ("sum", "adds {n} numbers", "add", " + "),
    ("product", "multiplies {n} numbers", "multiply", " * "),
)


def about_arguments(rng: random.Random) -> WrittenFunction:
    num = rng.choice((2, 2, 3, 4))
    names = rng.choice(("a b c d", "x y z w", "first second third fourth")).split()[:num]
    arguments, words = ", ".join(names), NUMBER_WORDS[num]
    if rng.random() < 0.35:
        what, does, name, sign = rng.choice(OPERATIONS)
        return function(name, arguments, does.format(n=words), f"return {sign.join(names)}", f"It returns the {what}.", rng)  # fmt: skip
    choices = (
        (("larger", "largest"), "maximum", f"return max({arguments})"),
        (("smaller", "smallest"), "minimum", f"return min({arguments})"),
    )
    (two, more), name, body = rng.choice(choices)
    which = two if num == 2 else more
    if num == 2 and rng.random() < 0.4:
        sign = ">" if two == "larger" else "<"
        body = f"if {names[0]} {sign} {names[1]}:\n    return {names[0]}\nreturn {names[1]}"
    if rng.random() < 0.25:
        body = f"return ({' + '.join(names)}) / {num}"
        return function("average", arguments, f"returns the average of {words} numbers", body, f"It adds them and divides by {num}.", rng)  # fmt: skip
    return function(name, arguments, f"returns the {which} of {words} numbers", body, f"It returns the {which} one.", rng)  # fmt: skip


# Name, arguments, what it does, body, how it works; `does` may have several wordings, separated by " | ".
FIXED = """
reverse_string ; text ; reverses a string | returns a string backwards ; return text[::-1] ; The slice goes backwards.
is_palindrome ; text ; checks whether a string is a palindrome ; return text == text[::-1] ; It compares the text with its reverse.
factorial ; n ; computes the factorial of a number | returns n factorial ; result = 1/for i in range(2, n + 1):/    result *= i/return result ; It multiplies all numbers from 2 to n.
fibonacci ; n ; returns the first n Fibonacci numbers ; a, b, numbers = 0, 1, []/for _ in range(n):/    numbers.append(a)/    a, b = b, a + b/return numbers ; Each number is the sum of the two before it.
nth_fibonacci ; n ; returns the n-th Fibonacci number ; a, b = 0, 1/for _ in range(n):/    a, b = b, a + b/return a ; It goes n steps from 0 and 1.
is_prime ; n ; checks whether a number is prime | checks if a number is prime ; if n < 2:/    return False/for d in range(2, int(n ** 0.5) + 1):/    if n % d == 0:/        return False/return True ; It looks for a divisor up to the square root.
primes ; n ; returns all primes up to n ; return [i for i in range(2, n + 1) if all(i % d for d in range(2, i))] ; It keeps numbers without a divisor.
gcd ; a, b ; returns the greatest common divisor of two numbers ; while b:/    a, b = b, a % b/return a ; This is Euclid's algorithm.
lcm ; a, b ; returns the least common multiple of two numbers ; return a * b // gcd(a, b) ; It divides the product by the greatest common divisor.
read_file ; path ; reads a file and returns its text | returns the text of a file ; with open(path, encoding="utf-8") as file:/    return file.read() ; The file is closed at the end of the block.
read_lines ; path ; reads a file and returns its lines | returns the lines of a file ; with open(path, encoding="utf-8") as file:/    return file.read().splitlines() ; It reads the text and splits it.
write_file ; path, text ; writes a text to a file | saves a string to a file ; with open(path, "w", encoding="utf-8") as file:/    file.write(text) ; The file is closed at the end of the block.
count_lines ; path ; counts the lines of a file ; with open(path, encoding="utf-8") as file:/    return sum(1 for line in file) ; It adds one for each line.
load_json ; path ; loads a JSON file | reads a JSON file ; with open(path, encoding="utf-8") as file:/    return json.load(file) ; It needs the module json.
save_json ; path, data ; saves data to a JSON file | writes data as JSON to a file ; with open(path, "w", encoding="utf-8") as file:/    json.dump(data, file) ; It needs the module json.
count_words ; text ; counts the words in a string | counts the words in a text ; return len(text.split()) ; It splits the text at white space.
count_vowels ; text ; counts the vowels in a string ; return sum(1 for letter in text.lower() if letter in "aeiou") ; It adds one for each vowel.
remove_vowels ; text ; removes the vowels from a string ; return "".join(letter for letter in text if letter.lower() not in "aeiou") ; It keeps all other letters.
count_letter ; text, letter ; counts how often a letter occurs in a string ; return text.count(letter) ; Strings have a method for that.
capitalize_words ; text ; capitalizes each word of a string ; return " ".join(word.capitalize() for word in text.split()) ; It joins the words again.
to_upper ; text ; converts a string to upper case ; return text.upper() ; Strings have a method for that.
to_lower ; text ; converts a string to lower case ; return text.lower() ; Strings have a method for that.
remove_spaces ; text ; removes the spaces from a string | removes all spaces from a text ; return text.replace(" ", "") ; It replaces each space by nothing.
longest_word ; text ; returns the longest word of a text | finds the longest word in a string ; return max(text.split(), key=len) ; It compares the words by their length.
shortest_word ; text ; returns the shortest word of a text ; return min(text.split(), key=len) ; It compares the words by their length.
word_lengths ; text ; returns the length of each word in a text ; return [len(word) for word in text.split()] ; It takes the length of each word.
reverse_words ; text ; reverses the order of the words in a string ; return " ".join(reversed(text.split())) ; It joins the words in reverse.
is_anagram ; first, second ; checks whether two strings are anagrams ; return sorted(first) == sorted(second) ; It compares the sorted letters.
repeat ; text, n ; repeats a string n times ; return text * n ; A string can be multiplied.
starts_with ; text, prefix ; checks whether a string starts with a prefix ; return text.startswith(prefix) ; Strings have a method for that.
split_path ; path ; splits a path into directory and file name ; return os.path.split(path) ; It needs the module os.
file_extension ; path ; returns the extension of a file name ; return os.path.splitext(path)[1] ; It needs the module os.
join_lines ; lines ; joins lines to a text ; return "\\n".join(lines) ; It puts a line break between them.
join_words ; words ; joins words with spaces ; return " ".join(words) ; It puts a space between them.
char_counts ; text ; counts how often each letter occurs in a string ; counts = {}/for letter in text:/    counts[letter] = counts.get(letter, 0) + 1/return counts ; The dictionary has a count for each letter.
word_counts ; text ; counts how often each word occurs in a text ; counts = {}/for word in text.split():/    counts[word] = counts.get(word, 0) + 1/return counts ; The dictionary has a count for each word.
mean ; numbers ; computes the mean of a list of numbers | returns the average of a list ; return sum(numbers) / len(numbers) ; It divides the sum by the length.
median ; numbers ; returns the median of a list of numbers ; ordered = sorted(numbers)/middle = len(ordered) // 2/if len(ordered) % 2:/    return ordered[middle]/return (ordered[middle - 1] + ordered[middle]) / 2 ; It takes the middle of the sorted list.
total ; numbers ; returns the sum of a list of numbers | adds all numbers in a list ; return sum(numbers) ; The function sum does it.
product ; numbers ; returns the product of a list of numbers | multiplies all numbers in a list ; result = 1/for number in numbers:/    result *= number/return result ; It multiplies one after the other.
largest ; numbers ; returns the largest number in a list | finds the maximum of a list ; return max(numbers) ; The function max does it.
smallest ; numbers ; returns the smallest number in a list | finds the minimum of a list ; return min(numbers) ; The function min does it.
second_largest ; numbers ; returns the second largest number in a list ; return sorted(set(numbers))[-2] ; It sorts the distinct numbers.
sort_list ; items ; sorts a list | returns a sorted list ; return sorted(items) ; The list itself is not changed.
sort_descending ; items ; sorts a list in descending order ; return sorted(items, reverse=True) ; The largest comes first.
sort_by_length ; words ; sorts words by their length ; return sorted(words, key=len) ; The shortest comes first.
reverse_list ; items ; reverses a list ; return items[::-1] ; The slice goes backwards.
first_item ; items ; returns the first item of a list ; return items[0] ; The index of the first is 0.
last_item ; items ; returns the last item of a list ; return items[-1] ; Negative indices count from the end.
remove_duplicates ; items ; removes duplicates from a list | returns a list without duplicates ; return list(dict.fromkeys(items)) ; A dictionary keeps the order of its keys.
has_duplicates ; items ; checks whether a list has duplicates ; return len(items) != len(set(items)) ; A set has each item once.
common_items ; first, second ; returns the items that two lists have in common ; return [item for item in first if item in second] ; It keeps what is in both.
merge_lists ; first, second ; merges two lists | joins two lists ; return first + second ; Lists can be added.
flatten ; lists ; flattens a list of lists ; return [item for items in lists for item in items] ; It goes through all lists.
chunks ; items, size ; splits a list into chunks ; return [items[i:i + size] for i in range(0, len(items), size)] ; Each slice has that size.
rotate ; items, n ; rotates a list by n places ; return items[n:] + items[:n] ; It puts the start behind the end.
contains ; items, item ; checks whether a list contains an item ; return item in items ; The operator in does it.
index_of ; items, item ; returns the index of an item in a list ; return items.index(item) ; Lists have a method for that.
binary_search ; items, target ; finds an item in a sorted list by binary search ; low, high = 0, len(items) - 1/while low <= high:/    middle = (low + high) // 2/if_ ; It halves the list in each step.
bubble_sort ; items ; sorts a list with bubble sort ; items = list(items)/for end in range(len(items), 1, -1):/    for i in range(end - 1):/        if items[i] > items[i + 1]:/            items[i], items[i + 1] = items[i + 1], items[i]/return items ; Large items move to the end.
quick_sort ; items ; sorts a list with quick sort ; if len(items) < 2:/    return items/first, *rest = items/low = [item for item in rest if item < first]/high = [item for item in rest if item >= first]/return quick_sort(low) + [first] + quick_sort(high) ; It sorts both parts by itself.
invert_dict ; mapping ; swaps the keys and values of a dictionary | inverts a dictionary ; return {value: key for key, value in mapping.items()} ; Each value becomes a key.
merge_dicts ; first, second ; merges two dictionaries ; return {**first, **second} ; The second one wins.
sort_dict ; mapping ; sorts a dictionary by its keys ; return dict(sorted(mapping.items())) ; A dictionary keeps the order.
swap ; a, b ; swaps two values ; return b, a ; It returns both in the other order.
absolute ; number ; returns the absolute value of a number ; return -number if number < 0 else number ; It turns negative numbers around.
clamp ; value, low, high ; limits a value to a range | clamps a value between two bounds ; return max(low, min(value, high)) ; It takes the nearest value of the range.
square ; number ; returns the square of a number ; return number * number ; It multiplies the number with itself.
cube ; number ; returns the cube of a number ; return number ** 3 ; It takes the third power.
power ; base, exponent ; raises a number to a power ; return base ** exponent ; The operator ** does it.
square_root ; number ; returns the square root of a number ; return number ** 0.5 ; It takes the power of one half.
digits ; number ; returns the digits of a number ; return [int(digit) for digit in str(number)] ; It goes through the text of the number.
sum_of_digits ; number ; returns the sum of the digits of a number ; return sum(int(digit) for digit in str(number)) ; It goes through the text of the number.
sum_to ; n ; returns the sum of the numbers from 1 to n ; return n * (n + 1) // 2 ; This is the formula of Gauss.
countdown ; n ; prints a countdown from n to 1 ; for i in range(n, 0, -1):/    print(i) ; The step of the range is -1.
print_numbers ; n ; prints the numbers from 1 to n ; for i in range(1, n + 1):/    print(i) ; The end of a range is not part of it.
fizz_buzz ; n ; prints FizzBuzz up to n ; for i in range(1, n + 1):/    text = "Fizz" * (i % 3 == 0) + "Buzz" * (i % 5 == 0)/    print(text or i) ; A text is repeated once or not at all.
to_binary ; number ; converts a number to binary ; return bin(number)[2:] ; It cuts the prefix off.
from_binary ; text ; converts a binary string to a number ; return int(text, 2) ; The base is 2.
to_hex ; number ; converts a number to hexadecimal ; return hex(number)[2:] ; It cuts the prefix off.
is_leap_year ; year ; checks whether a year is a leap year ; return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) ; Full centuries need a multiple of 400.
today ; - ; returns the date of today ; return datetime.date.today() ; It needs the module datetime.
now ; - ; returns the current time ; return datetime.datetime.now() ; It needs the module datetime.
random_item ; items ; returns a random item of a list ; return random.choice(items) ; It needs the module random.
shuffle ; items ; shuffles a list | returns a shuffled list ; return random.sample(items, len(items)) ; It needs the module random.
roll_dice ; - ; rolls a dice ; return random.randint(1, 6) ; It needs the module random.
flip_coin ; - ; flips a coin ; return random.choice(["heads", "tails"]) ; It needs the module random.
file_exists ; path ; checks whether a file exists ; return os.path.exists(path) ; It needs the module os.
list_files ; path ; lists the files in a directory ; return os.listdir(path) ; It needs the module os.
delete_file ; path ; deletes a file | removes a file ; os.remove(path) ; It needs the module os.
file_size ; path ; returns the size of a file ; return os.path.getsize(path) ; The size is in bytes.
copy_file ; source, target ; copies a file ; shutil.copy(source, target) ; It needs the module shutil.
hello ; name ; greets a person by name | says hello to a person ; return f"Hello, {name}!" ; The name is put into the text.
sleep ; seconds ; waits for some seconds ; time.sleep(seconds) ; It needs the module time.
transpose ; matrix ; transposes a matrix ; return [list(row) for row in zip(*matrix)] ; The columns become rows.
dot ; a, b ; computes the dot product of two vectors ; return sum(x * y for x, y in zip(a, b)) ; It adds the products.
distance ; x1, y1, x2, y2 ; returns the distance between two points ; return ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 ; This is the theorem of Pythagoras.
compound_interest ; amount, rate, years ; computes compound interest ; return amount * (1 + rate) ** years ; It grows by the rate every year.
grade ; score ; returns a grade for a score ; if score >= 90:/    return "A"/if score >= 80:/    return "B"/return "C" ; It compares from the top.
is_empty ; items ; checks whether a list is empty ; return not items ; An empty list is false.
is_number ; text ; checks whether a string is a number ; return text.isdigit() ; All characters have to be digits.
is_email ; text ; checks whether a string is an email address ; return "@" in text and "." in text.split("@")[-1] ; It looks for an @ and a dot behind it.
caesar ; text, shift ; encodes a text with the Caesar cipher ; return "".join(chr((ord(c) - 97 + shift) % 26 + 97) for c in text) ; Each letter moves by the shift.
zip_dict ; keys, values ; makes a dictionary from two lists ; return dict(zip(keys, values)) ; It pairs each key with a value.
""".strip().replace(
    "/if_ ;",
    "/    if items[middle] == target:/        return middle/    if items[middle] < target:/        low = middle + 1"
    "/    else:/        high = middle - 1/return -1 ;",
)


def parse_fixed() -> list[tuple[str, str, list[str], str, str]]:
    parsed = []
    for line in FIXED.splitlines():
        name, arguments, does, *body, how = line.split(" ; ")
        parsed.append((name.strip(), "" if arguments == "-" else arguments, does.split(" | "), " ; ".join(body), how))
    return parsed


FIXED_FUNCTIONS = parse_fixed()


def well_known(rng: random.Random) -> WrittenFunction:
    name, arguments, does, body, how = rng.choice(FIXED_FUNCTIONS)
    lines = body.replace(" // ", " \0 ").replace(" / ", " \1 ").split("/")
    text = "\n".join(lines).replace("\0", "//").replace("\1", "/")
    return function(name, arguments, rng.choice(does), text, how, rng)


FAMILIES = (about_numbers, about_powers, about_units, about_arguments, well_known)
WEIGHTS = (0.24, 0.06, 0.1, 0.1, 0.5)


def written_function(rng: random.Random) -> WrittenFunction:
    """One of them, drawn at random."""
    return rng.choices(FAMILIES, WEIGHTS)[0](rng)
