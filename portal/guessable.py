"""Which passwords a guesser tries first: those that consist of common words, walks over the keyboard, repeats and a few signs.

Lists of leaked passwords, kept to those of twelve characters and more, hold hardly anything else. So the parts are kept here instead of the
thousands of their combinations, and a combination that nobody has leaked yet is refused, too.
"""

from __future__ import annotations

from itertools import pairwise

# Costs of a character that is part of nothing known: a digit is guessed far more easily than a letter.
_LETTER, _DIGIT = 2, 1
# What has to be of the user's own: four letters, or eight digits.
_ENOUGH = 4 * _LETTER
_SHORTEST_WALK = 3
# What is repeated has to be long enough to be a password by itself.
_SHORTEST_UNIT = 12
_SPELT = str.maketrans("@4830!1|5$7+", "aabeoiilsstt")

_WALKS = (
    "qwertyuiopasdfghjklzxcvbnm", "qwertzuiopasdfghjklyxcvbnm", "azertyuiopqsdfghjklmwxcvbn", "asdfghjkl", "zxcvbnm", "yxcvbnm",
    "abcdefghijklmnopqrstuvwxyz", "01234567890123456789", "1q2w3e4r5t6y7u8i9o0p", "q1w2e3r4t5y6u7i8o9p0", "1qaz2wsx3edc4rfv5tgb6yhn7ujm8ik9ol0p",
    "qazwsxedcrfvtgbyhnujmikolp", "zaq12wsxcde34rfvbgt5", "qweasdzxc", "qwaszxerdfcv", "1a2b3c4d5e6f7g8h", "a1b2c3d4e5f6g7h8", "741852963", "147258369", "159357", "789456123",
    "13579", "24680", "112233445566778899", "111222333444555666777888999000", "aabbccddeeff", "31415926535897932384626433832795",
)  # fmt: skip

_WORDS = frozenset(
    """
password passwort passwords passwd pass passe word kennwort parola contrasena motdepasse geheim secret secrets private change changeme changeit default temp temporary
letmein letme in openup open sesame access login logon logmein welcome hello hallo bonjour hola test tester testing trust trustno1 guest user username admin administrator root
toor superuser super sysadmin system server service manager master owner supervisor operator oracle mysql postgres database computer internet windows microsoft google apple samsung android
iphone facebook youtube twitter instagram linkedin myspace amazon netflix github docker kubernetes linux ubuntu debian redhat centos cisco tclone
qwerty qwertz azerty asdf zxcv qaz wsx edc abc abcd
iloveyou ilove love lover lovely loveme lovers iloveu you yousomuch myself forever always together baby babygirl babyboy angel angels princess prince queen king sweet sweetheart sweetie honey
darling beautiful pretty sexy hottie cutie princesa teamo tequiero amor mylove mylife family mother father mommy daddy brother sister friend friends bestfriend
monkey dragon tiger lion eagle falcon wolf panther bear horse dolphin butterfly kitty kitten puppy doggy dog cat bunny rabbit turtle snake spider shark chicken
football baseball basketball soccer hockey tennis golf volleyball rugby cricket champion winner player gamer game games liverpool arsenal chelsea manchester united barcelona realmadrid
juventus bayern dortmund yankees cowboys lakers steelers raiders eagles packers patriots redsox rangers
superman batman spiderman ironman starwars startrek pokemon pikachu naruto minecraft fortnite warcraft matrix terminator gandalf frodo harrypotter hogwarts hannah montana
sunshine moonlight starlight rainbow summer winter spring autumn flower flowers rose sunflower chocolate cookie cookies banana orange cherry strawberry pepper ginger cheese coffee
whatever nothing anything something everything everyone nobody somebody unbelievable incredible fantastic awesome perfect amazing
freedom liberty america american england london paris berlin newyork california texas chicago boston jordan india pakistan brasil brazil mexico canada australia
january february march april may june july august september october november december monday tuesday wednesday thursday friday saturday sunday today
jesus jesuschrist christ god blessed heaven faith hope grace
michael jennifer jessica ashley michelle daniel matthew joshua andrew christopher anthony robert william joseph thomas charles nicholas nicole amanda samantha elizabeth stephanie
alexander alexandra victoria patricia maria carlos fernando alejandro francisco juan jose antonio eduardo ricardo miguel david george james john richard charlie maggie buster
shadow hunter killer ninja pirate soldier warrior knight legend phoenix mustang ferrari porsche mercedes corvette harley yamaha
fuck fuckyou fuckme fuckoff asshole bitch shit
money dollar million diamond silver golden gold platinum
music guitar metallica nirvana eminem beatles slipknot blink182
correcthorsebatterystaple correct horse battery staple mypassword thisismypassword ismy this is my the and for
one two three four five six seven eight nine zero
""".split()
)
_LONGEST = max(map(len, _WORDS))


def guessable(password: str, user: str = "") -> bool:
    """Whether too little of a password is its user's own; the user's name counts as a common word, wherever it stands."""
    name = "".join(character for character in user.casefold() if character.isalnum())
    plain = "".join(character for character in password.casefold() if character.isalnum())
    # Signs and digits in place of letters are undone before signs are dropped: p@$$w0rd.
    spelt = "".join(character for character in password.casefold().translate(_SPELT) if character.isalnum())
    return _repeats(plain) or any(_own(text, name) < _ENOUGH for text in (plain, spelt))


def _repeats(text: str) -> bool:
    """Whether a text is nothing but repeats of a short one."""
    return bool(text) and (text + text).find(text, 1) < min(len(text), _SHORTEST_UNIT)


def _own(text: str, name: str) -> int:
    """The least cost to put a text together, where everything known costs nothing."""
    costs = [0] + [len(text) * _LETTER] * len(text)
    for start, character in enumerate(text):
        alone = _DIGIT if character.isdigit() else _LETTER
        costs[start + 1] = min(costs[start + 1], costs[start] + alone)
        ends = _known(text, start)
        if name and text.startswith(name, start):
            ends.append(start + len(name))
        for end in ends:
            costs[end] = min(costs[end], costs[start])
    return costs[-1]


def _known(text: str, start: int) -> list[int]:
    """Where words, walks and rows of the same character that begin at `start` end."""
    ends = [end for end in range(start + 2, min(len(text), start + _LONGEST) + 1) if text[start:end] in _WORDS]
    end = start + _SHORTEST_WALK
    while end <= len(text) and any(text[start:end] in walk or text[start:end] in walk[::-1] for walk in _WALKS):
        ends.append(end)
        end += 1
    same = next((index + 1 for index, (one, other) in enumerate(pairwise(text[start:])) if one != other), len(text) - start)
    return ends + [start + same] if same >= _SHORTEST_WALK else ends
