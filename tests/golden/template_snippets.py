"""Snippets of the template language, rendered by make_templates.py with jinja2 and replayed by the C test.

EXPRESSIONS are wrapped in {{ }}; STATEMENTS are whole templates. Both see VARS. What jinja2 refuses must be
refused by us too.
"""

VARS = {
    "s": "Hello World", "u": "Ünïcödé 🙂 straße ΑΣ", "e": "", "ws": " \t pad\u00a0\n", "n": 7, "z": 0, "neg": -7,
    "f": 2.5, "big": 9007199254740993, "t": True, "no": False, "none_": None,
    "l": [3, 1, 2], "ls": ["b", "a", "C", "B"], "el": [], "nested": [[1, [2, 3]], {"k": [None, True]}],
    "d": {"b": 1, "a": "x", "items": 5, "n e": [1], "c": {"d": {"e": "deep"}}}, "ed": {},
    "users": [
        {"name": "Ann", "age": 30, "tags": ["x", "y"], "on": True},
        {"name": "bob", "age": 25, "tags": [], "on": False},
        {"name": "Cid", "age": 30, "tags": ["z"], "on": True, "extra": None},
        {"name": "ann", "age": 41, "tags": ["x"], "on": False},
    ],
    "multi": "one\ntwo\r\nthree\n\nfive\x0bsix\u2028seven", "quote": "it's \"q\" \\ \x00\x1b\x7f é\u200b\ue000 🙂",
    "html": "<a href=\"x\">T & 'q'</a>", "json": "{\"a\": 1}",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "bye"}],
}

EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
2 ** 3 ** 2
-2 ** 2
2 ** -1
2 ** 0.5
-7 // 2
-7 % 3
7 % -3
7 // -2
7.5 // 2
-7.5 // 2
-7.5 % 2
7.5 % -2
1 / 2
4 / 2
1 // 0
1 / 0
1 % 0
1.0 / 0
5 % 2.5
-0.0
0.0 * -1
1 ~ 2 + 3
1 + 2 ~ 3
"a" ~ 1 ~ none ~ true ~ [1]
"a" + "b" * 3
3 * "ab"
"ab" * -1
"ab" * 0
[1, 2] * 2
2 * (1,)
[1] + [2, 3]
(1,) + (2,)
[1] + (2,)
"a" + 1
1 + "a"
none + 1
undef + 1
1 - undef
undef ~ "x"
"x" ~ undef
true + true
true * 5
-true
+n
-s
not n
not not e
- - n
+-n
n - -1
1 if t
1 if no
(1 if no) is undefined
1 if no else 2
1 if t else 2 if t else 3
1 if no else 2 if no else 3
t and n
z or "dflt"
z and nope.boom
n or nope.boom
no or z or e
not t or n
not (t and no)
1 < 2 < 3
1 < 3 < 2
1 == 1.0 == true
1 != 2 != 1
"a" < "b"
"a" < 1
[1, 2] < [1, 3]
[1, 2] < [1]
(1, "a") < (1, "b")
[1] < (1,)
none < none
undef < 1
undef == undef
undef == none
undef == ""
1 == "1"
[1, 2] == (1, 2)
{"a": 1} == {"a": 1.0}
big == 9007199254740992.0
big > 9007199254740992.0
"ell" in s
"x" in s
1 in l
1 in [1.0]
1 not in l
"a" in d
"z" not in d
1 in 5
1 in s
"" in s
"x" in undef
none in [none]
undef in [none]
2 in range(5)
2.0 in range(5)
"a" in d.keys()
1 in d.values()
("a", "x") in d.items()
l is iterable
5 is iterable
undef is iterable
undef is sequence
d.items() is sequence
d.keys() is iterable
s is string
n is number
t is number
f is number
t is integer
n is integer
f is float
n is float
t is boolean
none_ is none
none_ is not none
undef is none
undef is defined
s is defined
d.nope is defined
d.b is defined
d["b"] is not undefined
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
range is callable
s is callable
undef is callable
s.upper is callable
n is odd
n is even
neg is odd
4 is even
f is even
"a" is odd
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(8)
n is == 7
n is ne 7
n is lt 8
n is gt 8
n is ge 7
n is le 6
n is lessthan 9
n is greaterthan(3)
n is in [7]
n is in(l)
n is sameas 7
t is sameas true
none_ is sameas none
t is true
t is false
no is false
1 is true
"abc" is lower
"Abc" is lower
"ABC" is upper
"A1" is upper
"1" is upper
1 is upper
"upper" is filter
"nope" is filter
"odd" is test
"nope" is test
"a" is escaped
("a"|safe) is escaped
n is nope
1 is odd and 2 is even
1 is not odd or t
not n is odd
n is odd is even
s is string ~ "x"
s.startswith("Hell")
s.startswith(("x", "H"))
s.startswith("World", 6)
s.startswith("lo", 3, 5)
s.startswith("x", 50)
s.startswith("", 50)
s.startswith("", 11)
s.startswith(1)
s.startswith()
s.startswith(undef)
s.endswith("ld")
s.endswith(("ld", 1))
s.endswith("lo", 0, 5)
s.endswith("lo", 0, -6)
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
s.casefold()
u.upper()
u.lower()
u.title()
u.capitalize()
u.swapcase()
"ΑΣ ΑΣ. ΣΑ Σ".lower()
"ŉ ǰ ﬁ İ ı ǆ ǅ".upper()
"ŉ ǰ ﬁ İ ı ǆ ǅ".title()
"ŉ ǰ ﬁ İ ı ǆ ǅ".lower()
"they're bill's 3rd".title()
"they're bill's-x (y".title()
("they're bill's-x (y {z [w <v ΣΑΣ")|title
ws.strip()
ws.lstrip()
ws.rstrip()
"xxhixx".strip("x")
"xyhiyx".lstrip("yx")
"xyhiyx".rstrip("yx")
"éèaéè".strip("éè")
"<think>a</think>b".split("</think>")
"<think>a</think>b".split("</think>")[-1].lstrip("\n")
"a,b,,c".split(",")
"a,b,,c".split(",", 1)
"a,b,,c".split(",", maxsplit=2)
"a,b,,c".rsplit(",", 1)
"a,b,,c".rsplit(",")
"  a  b c ".split()
"  a  b c ".split(none, 1)
"  a  b c ".rsplit(none, 1)
"  a  b c ".rsplit()
"".split()
"".split(",")
"a".split("")
"a b".split(sep=" ")
s.split(1)
s.split(undef)
multi.splitlines()
multi.splitlines(true)
multi.splitlines(keepends=true)
"".splitlines()
"\n".splitlines()
s.replace("l", "L")
s.replace("l", "L", 1)
s.replace("", "-")
s.replace("", "-", 2)
"".replace("", "x")
"".replace("", "x", 0)
s.replace("zzz", "y")
s.replace("l", "L", -1)
s.replace("l", "L", 0)
s.replace(1, "x")
s.replace("l", new="x")
u.replace("ö", "oe")
"aaa".replace("aa", "b")
s.find("o")
s.find("o", 5)
s.find("o", -3)
s.find("zz")
s.rfind("o")
u.find("🙂")
u.rfind("s")
s.index("W")
s.index("zz")
s.rindex("l")
s.count("l")
s.count("")
"aaaa".count("aa")
u.count("s", 3)
"a-b-c".partition("-")
"a-b-c".rpartition("-")
"abc".partition("-")
"abc".rpartition("-")
"abc".removeprefix("ab")
"abc".removeprefix("x")
"abc".removesuffix("bc")
"abc".removesuffix("")
", ".join(["a", "b"])
", ".join("xyz")
"".join([])
", ".join([1])
"-".join(d)
"ab".center(7)
"abc".center(6, "*")
"abc".center(7, "*")
"ab".ljust(5) ~ "|"
"ab".rjust(5, "é")
"ab".rjust(5, "xy")
"-42".zfill(6)
"42".zfill(1)
"é".zfill(3)
"a\tb".expandtabs()
"a\tb".expandtabs(4)
"abc".isalpha()
"ab1".isalpha()
"ab1".isalnum()
"12".isdigit()
"²".isdigit()
"²".isdecimal()
"½".isnumeric()
"".isdigit()
" \t".isspace()
"".isspace()
"aB".islower()
"ab1".islower()
"AB".isupper()
"Ab Cd".istitle()
"ab".istitle()
"a_1".isidentifier()
"1a".isidentifier()
"é".isascii()
"\n".isprintable()
"{} {}".format(1, "a")
"{1} {0}".format(1, "a")
"{a.b} {c[0]} {d[x]}".format(a=d, c=l, d={"x": 9})
"{:>8}|{:<8}|{:^8}|{:*^9}".format("ab", "cd", "ef", "g")
"{:05d} {:+d} {:x} {:#x} {:b} {:o} {:,} {:_}".format(42, 42, 255, 255, 5, 8, 1234567, 1234567)
"{:.2f} {:e} {:g} {:%} {:8.3f}|{:,.2f}".format(3.14159, 12345.678, 0.0001, 0.25, 2.5, 1234567.891)
"{!r} {!s}".format("a", "b")
"{{}} {}".format(1)
"{:{}}|".format("a", 5)
"{".format()
"}".format()
"{} {}".format(1)
"{0} {}".format(1, 2)
"{x}".format()
"{:d}".format("a")
"{:z}".format(1)
"{:.2}".format("abcdef")
"{:.3}".format(1234.5)
"{:6}|".format(true)
"{}".format(none)
"{:5}".format(none)
"{:c}".format(65)
"%s and %d and %r" % ("a", 5, "b")
"%5d|%-5d|%05d|%+d" % (1, 2, 3, 4)
"%.2f %e %g %x %X %o %%" % (1.5, 1.5, 1.5, 255, 255, 8)
"%(a)s %(b)d" % {"a": "x", "b": 3}
"%s" % "a"
"%s" % none
"%s" % [1, 2]
"%s" % (1, 2)
"%s %s" % "a"
"%s" % ()
"%d" % "a"
"%d" % 1.9
"%q" % 1
"abc" % 1
"abc" % [1]
"%c%c" % ("a", 66)
"%10.3s|" % "abcdef"
"%*d" % (5, 3)
"%s" % undef
"%i %u" % (1, 2)
"%.3d|%8.3d|%-8.3d|%+.3d" % (5, -5, 5, 5)
"%#x %#o" % (255, 8)
"%5s|%-5s|" % ("é", "é")
s[0]
s[-1]
s[20]
s[1:3]
s[:-1]
s[::-1]
s[::2]
s[-3:]
s[5:2]
s[4:1:-1]
s[::-3]
s[100:]
s[-100:3]
s[:100:2]
s[::0]
s["a"]
u[8]
u[-3:]
u[::-1]
u[1::3]
u[::-2]
l[0]
l[-1]
l[9]
l[9] is undefined
l["0"]
l.0
nested.0.1.1
nested[0][1][-1]
l[::-1]
l[1:]
l[:1]
l[5:]
l[-2:]
l[::2]
l[true]
l[1.0]
l[none:2]
l[undef:]
l["a":]
(1, 2, 3)[1:]
range(10)[2:5]
range(10)[::-2]
range(10)[-1]
d[1:2]
none_[0]
none_.x
none_["x"]
5[0]
d["b"]
d.b
d["items"]
d["n e"]
d.c.d.e
d.c["d"].e
d.nope
d.nope.x
d["nope"]["x"]
d[[1]]
undef
undef.x
undef["x"]
undef()
undef[1:]
s.nope
s.nope.x
l.nope
l.append(1)
l.append
l.append is defined
l.sort()
d.pop("b")
d.update({})
d.setdefault("a", 1)
d.get("b")
d.get("nope")
d.get("nope", "dflt")
d.get()
d.get("b", default=1)
d.keys()
d.values()
d.items()
d.keys()|list
d.items()|list
d.copy()
d.keys().x
l.index(1)
l.index(99)
l.count(1)
l.copy()
(1, 2).count(1)
(1, 2).index(2)
2.5.is_integer()
(2.0).is_integer()
(5).bit_length()
s.upper().lower().title()
s()
l[0]()
{}
{"a": 1, "b": [1, 2], 3: none, none: true, (1, 2): 4}
{"a": 1, "a": 2}
{1: "a", 1.0: "b", true: "c"}
{[1]: 2}
[]
[1, 2.0, "a", none, true, undef]
()
(1,)
(1)
1,
1, 2
[1, 2,]
[(1, 2), [3]]
{"a": {"b": {}}}
"it's"
["it's", 'a"b', "it's \"x\""]
[quote]
quote
[u]
"a" "b" 'c'
"\x41\u00e9\U0001F642\101\n|\q|\\|\'"
"\
x"
'\t|\a\b\f\v\r|'|tojson
"\u12"
"\xzz"
0x1F
0b101
0o17
1_000
1e3
1.5e-3
1E5
0_0
1.0
100000000000000000000.0
1e16
1e15
123456789012345678.0
0.1
0.0001
0.00001
1e-7
1.1e300
5e-324
1e400
-1e400
0.1 + 0.2
1/3
2/3
100.0
1e22
1e23
9223372036854775807
-9223372036854775807
3.0 * 2
7 // 2.0
1.5 ~ ""
[1.0, -0.0, 1e100]
range(3)
range(3)|list
range(1, 4)|list
range(5, 0, -2)|list
range(0)|list
range(0, 10, 0)
range(100001)
range("a")
range(2, 3, 4)
range(1.5)
range()
range(3)|length
dict(a=1, b=2)
dict({"x": 1}, y=2)
dict([("a", 1), ("b", 2)])
dict([1])
dict()
dict(1)
namespace(a=1).a
namespace({"x": 2}).x
namespace(a=1)
namespace().x
namespace().x is defined
namespace(_x=1)
namespace(a=1)["a"]
cycler()
raise_exception("boom")
raise_exception("böse: " ~ n)
raise_exception()
strftime_now("%Y-%m-%d %H:%M:%S")
strftime_now("%d %b %Y")
strftime_now("%-d %B %y %j %A %a %p %I %%")
strftime_now("%e|%f|%z|%Z|")
strftime_now("")
strftime_now("é %Y")
strftime_now(1)
strftime_now()
lipsum is defined
s|upper
s|lower|capitalize
u|upper
none_|upper
undef|upper
5|lower
s|length
u|length
l|length
d|count
5|length
undef|length
none_|length
range(4)|length
l|map("string")|length
ws|trim
"xxaxx"|trim("x")
5|trim
undef|trim
l|join(", ")
l|join
ls|join("-")
users|join(", ", attribute="name")
users|join(", ", "age")
"abc"|join("-")
d|join(",")
5|join
undef|join(",")
[none, true, 1.5, [1]]|join("|")
[1, 2]|join(3)
undef|default("x")
undef|default
undef|d(5)
none_|default("x")
none_|default("x", true)
e|default("x", boolean=true)
e|default("x")
d.nope|default("x")
undef.a|default("x")
s|title
s|capitalize
s|replace("l", "L")
s|replace("l", "L", 1)
5|replace("5", "6")
s|replace(1, 2)
undef|replace("a", "b")
l|first
l|last
s|first
s|last
u|last
el|first
el|last
el|first is undefined
undef|first
d|first
d|last
5|first
l|map("string")|last
l|map("string")|first
s|list
d|list
undef|list
5|list
(1, 2)|list
5|string
none_|string
undef|string
[1]|string
"42"|int
" 42 "|int
"4_2"|int
"42.7"|int
"abc"|int
"abc"|int(7)
"0x1f"|int
"0x1f"|int(base=16)
"1f"|int(0, 16)
"101"|int(base=2)
"0b11"|int(base=0)
none_|int
undef|int
42.9|int
-42.9|int
true|int
[1]|int(3)
"inf"|int
"1e3"|int
""|int
"1.5"|float
"abc"|float
"abc"|float(1)
none_|float
5|float
"nan"|float
"-inf"|float
"1_0.5"|float
"0x10"|float
undef|float
-5|abs
-5.5|abs
neg|abs
true|abs
"a"|abs
2.5|round
3.5|round
2.567|round(2)
2.675|round(2)
-2.5|round
5|round
1234.5|round(-2)
15|round(-1)
25|round(-1)
35|round(-1)
-15|round(-1)
2.1|round(0, "ceil")
2.9|round(0, "floor")
2.123|round(2, "ceil")
5|round(1, "ceil")
2.5|round(method="nope")
"a"|round
42.55|round(1)
1e300|round(2)
l|map("string")|list
l|map("string")|join("-")
users|map(attribute="name")|list
users|map(attribute="tags.0")|list
users|map(attribute="tags.0", default="-")|list
users|map(attribute="extra", default="none")|list
users|map("length")|list
ls|map("upper")|join
ls|map("replace", "a", "z")|list
ls|map("default", "x", boolean=true)|list
l|map|list
l|map("nope")|list
el|map("nope")|list
undef|map("upper")|list
none_|map("upper")|list
users|map(attribute="name", foo=1)|list
5|map("string")|list
l|select|list
[0, 1, "", "a", none]|select|list
l|select("odd")|list
l|select("gt", 1)|list
l|select(">", 1)|list
l|reject("odd")|list
[0, 1]|reject|list
l|select("nope")|list
el|select("nope")|list
users|selectattr("on")|map(attribute="name")|list
users|selectattr("age", "equalto", 30)|map(attribute="name")|list
users|selectattr("age", "gt", 26)|list|length
users|selectattr("extra", "defined")|list
users|selectattr("extra", "undefined")|map(attribute="name")|list
users|selectattr("tags.0", "eq", "x")|map(attribute="name")|join(",")
users|rejectattr("on")|map(attribute="name")|list
users|rejectattr("age", "in", [30])|map(attribute="name")|list
users|selectattr|list
users|selectattr("tags", "nope")|list
messages|selectattr("role", "equalto", "user")|list|last
(messages|selectattr("role", "equalto", "system")|first) is defined
(messages|selectattr("role", "equalto", "system"))|list|length
1 if messages|selectattr("role", "equalto", "system") else 2
messages[::-1][0].content
messages|reverse|first
(messages|reverse|list)[0]
s|reverse
u|reverse
l|reverse|list
d|reverse|list
l|map("string")|reverse
5|reverse
undef|reverse|list
l|sort
l|sort(reverse=true)
ls|sort
ls|sort(case_sensitive=true)
ls|sort(true)
users|sort(attribute="age")|map(attribute="name")|list
users|sort(attribute="age", reverse=true)|map(attribute="name")|list
users|sort(attribute="age,name")|map(attribute="name")|list
users|sort(attribute="nope")
[1, "a"]|sort
"hello"|sort
d|sort
undef|sort
[[2, 1], [1, 2]]|sort
ls|unique|list
ls|unique(case_sensitive=true)|list
[1, 1.0, true, 2]|unique|list
users|unique(attribute="age")|map(attribute="name")|list
[[1], [1]]|unique|list
l|sum
users|sum(attribute="age")
users|sum("age", 100)
el|sum
["a", "b"]|sum
[[1], [2]]|sum(start=[])
[1.5, 2]|sum
l|min
l|max
ls|min
ls|max
ls|max(case_sensitive=true)
users|max(attribute="age")
el|max
el|min is defined
[1, "a"]|max
d|items|list
ed|items|list
undef|items|list
l|items|list
none_|items|list
d|dictsort|length
{"b": 1, "A": 2, "c": 0}|dictsort
{"b": 1, "A": 2, "c": 0}|dictsort(true)
{"b": 1, "A": 2, "c": 0}|dictsort(false, "value")
{"b": 1, "A": 2, "c": 0}|dictsort(by="value", reverse=true)
{"b": 1}|dictsort(by="x")
{"b": 1, 2: 1}|dictsort
l|dictsort
users|groupby("age")|list|length
users|groupby("age")|map("first")|list
users|groupby("age")|map(attribute="grouper")|list
(users|groupby("name"))[0].list|length
(users|groupby("name", case_sensitive=true))|map("first")|list
(users|groupby("extra", default="q"))|map("first")|list
[{"a": 1}, {"a": 2}, {"a": 1}]|groupby("a")
multi|indent
multi|indent(2)
multi|indent(2, true)
multi|indent(width=1, first=true, blank=true)
multi|indent("> ", blank=true)
"a\n"|indent
""|indent
""|indent(2, true)
5|indent
undef|indent
"x"|safe
("<b>"|safe) + "<i>"
"<i>" + ("<b>"|safe)
("<b>"|safe) ~ "<i>"
html|e
html|escape
html|escape|escape
html|forceescape
5|escape
none_|e
l|batch(2)|list
l|batch(2, "x")|list
range(7)|batch(3)|map("list")|list
el|batch(2)|list
range(7)|slice(3)|list
range(7)|slice(3, "x")|list
l|slice(5)|list
el|slice(2)|list
"a b-c, d_e é"|wordcount
""|wordcount
"foo bar baz qux"|truncate(9)
"foo bar baz qux"|truncate(9, true)
"foo bar baz qux"|truncate(11)
"foo bar baz qux"|truncate(11, false, "...", 0)
"foo bar baz qux"|truncate(5, end="…", leeway=0)
"foo bar baz qux"|truncate(1)
"üüüüü üüüüü üüüüü"|truncate(8, leeway=0)
"%s, %s!"|format("a", "b")
"%(x)s"|format(x=1)
"%s"|format
"%s"|format(1, x=2)
"a b/c?d=é&"|urlencode
{"a b": "c/d", "é": 1}|urlencode
[("a", 1), ("b", "x y")]|urlencode
5|urlencode
"ab"|center(6) ~ "|"
"ab"|center|length
d|attr("b")
namespace(x=1)|attr("x")
d|tojson
users|tojson
quote|tojson
u|tojson
u|tojson(ensure_ascii=true)
quote|tojson(true)
d|tojson(indent=2)
d|tojson(indent=0)
d|tojson(indent="--")
nested|tojson(indent=4)
{"b": 1, "a": [1, {"c": 2}]}|tojson(sort_keys=true)
{"b": 1, "a": 2}|tojson(separators=(",", ":"))
{"b": 1, "a": [1, 2]}|tojson(indent=1, separators=(",", ":"))
{"b": 1, 2: 1}|tojson(sort_keys=true)
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
[]|tojson
{}|tojson
[[], {}]|tojson(indent=2)
(1, 2)|tojson
1.0|tojson
1e100|tojson
("nan"|float)|tojson
("inf"|float)|tojson
big|tojson
none_|tojson
true|tojson
undef|tojson
[undef]|tojson
range(3)|tojson
d.keys()|tojson
namespace(a=1)|tojson
html|tojson
"\x7f\u2028/"|tojson
json|tojson
d|tojson|length
d|nope
(d|nope) if false else 1
1 if true else d|nope
(1 if no else 2)|string ~ "x"
-1|abs
-n|abs
(-1)|abs
n|string|length + 1
1 + n|string|int
l|join("-")|upper|replace("-", "+")
s.upper()|lower
s|upper is upper
not s|upper is lower
s|attr("upper")()
[1, 2, 3]|sum / 2
{"a": 1}.a
{"a": 1}["a"]
[1, 2, 3][1]
"abc"[1]
"abc".upper()[0]
(1, 2)[0]
l.__class__
s.__class__.__mro__
d.__class__ is defined
"".__class__.__mro__
range.__globals__
d._x
d["__class__"]
loop
loop.index
caller
caller()
varargs
1 +
+ 1
1 2
(1
1)
[1
{1}
{1:}
"abc
a b
a..b
a.
a[
a[]
a|
a is
a is not
f(a=1, 2)
f(a=1, a=2)
f(*l)
"{}-{}-{}".format(*l)
"{b}".format(**d)
dict(**{"a": 1})
dict(**5)
"{}".format(*5)
dict(**{"a": 1}, b=2)
dict(*[{"a": 1}], **{"b": 2})
@
$x
a ? b
a && b
a !b
1 if
if x
é
l is sameas l
1;2
true.x
none.x
True is true
false == False
None
true and none
inf
1.5.x
1.e5
1e
.5
1__0
0777
0x
l[0:2:1]
l[::]
l[:]
l[-1:-4:-1]
l[5:-10:-1]
s[-1:-12:-4]
l[0:9223372036854775807]
l[::-9223372036854775807]
2 ** 62
""" .strip("\n").split("\n")

STATEMENTS = [
    # whitespace control
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}  \n  b\n  {% endif %}  \nc", "a {%- if true -%} b {%- endif -%} c",
    "a\n\n{%- if true %}\n b{% endif %}\n\n c", "a\n  {%+ if true %}\n b{%+ endif +%}\n c", "a  {{- 1 -}}  b", "a\n {{ 1 }}\n b",
    "a\n {#- c -#} \n b", "a\n  {# c #}\n  b", "a {# c #} b\n", "{# x\ny #}\na", "  {# c #}x", "  {% if 1 %}x{% endif %}  \n  y",
    "x\n\n", "x\n", "\n", "", "\n\n\n", "x\r\ny\rz\r\n", "{{ 'a\r\nb' }}", "a{{ 1 }}\n{{ 2 }}\n", "{%- if true %} x {% endif -%}  \n\n y",
    "{{- ' a ' -}} b", "a\u00a0{{- 1 -}}\u00a0b", "a\u2003\n {%- set x = 1 -%}\u2003b", "{% raw %}{{ x }}{% y %}{# z #}{% endraw %}",
    "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\n b", "a {%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}{% endraw %}", "{% raw %}x",
    "{% raw -%}\n x{% endraw +%}\n y", "{%raw%}a{%endraw%}b", "{%- raw +%}", "{% rawx %}", "{#", "{# a", "{#}", "{#-#}x", "{#--#}x", "a{#\n#}\nb", "{# a -#}\n\n b",
    "{% if true %}\n\n\nx{% endif %}", "\t{% set x = 1 %}\ty", "x\t{% set x = 1 %}\ty", "\n \n  {%- set x = 1 %}\n\n{{ x }}",
    "{{-1}}", "{{- 1}}", "{{+1}}", "{{ - 1 }}", "{{ {'a': {'b': 1}} }}", "{{ {'a':{}}}}", "{{'}}'}}", "{% set x = '%}' %}{{ x }}", "{{ '{{' }}",
    "{", "{ {", "}}", "%}", "#}", "{{", "{%", "{{ }}", "{% %}", "{{ 1 }", "{{ 1 %}", "{% if 1 }}", "a{b}c", "{ % if %}", "{{ (1 }}", "{{ 1) }}", "{{ [1) }}",
    # if
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}", "{% if z %}a{% elif n %}b{% else %}c{% endif %}", "{% if z %}a{% endif %}|",
    "{% if z %}a{% elif z %}b{% elif z %}c{% else %}d{% endif %}", "{% if undef %}a{% else %}b{% endif %}", "{% if undef.x %}a{% endif %}",
    "{% if %}x{% endif %}", "{% if t %}x", "{% if t %}x{% endfor %}", "{% else %}", "{% endif %}", "{% if t: %}x{% endif %}", "{% if 1, 2 %}x{% endif %}",
    "{% if t %}{% set q = 1 %}{% endif %}{{ q }}", "{% if z %}{% set q = 1 %}{% endif %}{{ q is defined }}", "{% if z %}{% set s = 1 %}{% endif %}{{ s }}",
    "{% if z %}{{ 1|nope }}{% endif %}ok", "{% if t %}{{ 1|nope }}{% endif %}", "{% if z is nope %}{% endif %}", "{% if z and z is nope %}{% endif %}ok",
    "{% for x in [] %}{{ x|nope }}{% endfor %}", "{% if z %}{% for x in l %}{{ x|nope }}{% endfor %}{% endif %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in el %}a{% else %}empty{% endfor %}", "{% for x in l %}a{% else %}empty{% endfor %}", "{% for x in undef %}a{% else %}none{% endfor %}",
    "{% for x in none_ %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{{ loop.last }}{% endfor %}", "{% for k, v in d|dictsort %}{{ k }};{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1, 2], 'xy'] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{{ loop.length }}{{ loop.last }} {% endfor %}",
    "{% for x in l if x > 9 %}a{% else %}none{% endfor %}", "{% for x in l if loop %}{{ x }}{% endfor %}|", "{% for m in messages if m.role == 'user' %}{{ loop.previtem.content }}{{ m.content }}{{ loop.nextitem.content }} {% endfor %}",
    "{% for x in range(5) %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in range(5) %}{% if x is odd %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}E{% endfor %}", "{% for x in l %}{% continue %}{% else %}E{% endfor %}", "{% for x in l %}{% if loop.index == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}|",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}", "{% break %}", "{% continue %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in l %}{% set y %}a{% if x == 1 %}{% break %}{% endif %}b{% endset %}{{ y }}{% endfor %}|", "{% for x in l %}{% filter upper %}a{% continue %}b{% endfilter %}c{% endfor %}|", "{% for x in l %}{% with %}{% break %}{% endwith %}{% endfor %}ok",
    "{% for x in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% for x in l %}{% for y in el %}{% else %}{% break %}{% endfor %}{{ x }}{% endfor %}|",
    "{% for x in [[1, [2, [3]]], [4]] recursive %}{% if x is iterable and x is not string %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{{ loop.depth0 }}{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}", "{% for x in l recursive %}{{ loop() }}{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in [1, 2] %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop.nope }}|{{ loop['index'] }}{% endfor %}", "{% for x in l %}{{ loop|length }}{{ loop is iterable }}{{ loop is callable }}{{ loop is sequence }}{% endfor %}", "{% for x in l %}{% endfor %}{{ x }}{{ loop }}",
    "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% for x in l %}{% for y in l %}{% set loop = 1 %}{% endfor %}{% endfor %}", "{% set loop = 5 %}{{ loop }}",
    "{% for true in l %}{% endfor %}", "{% for x.y in l %}{% endfor %}", "{% for 1 in l %}{% endfor %}", "{% for x in %}{% endfor %}", "{% for in l %}{% endfor %}", "{% for x l %}{% endfor %}", "{% for x in l %}", "{% endfor %}", "{% for x in l %}{% else %}{% else %}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x, in [[1], [2]] %}{{ x }}{% endfor %}", "{% for (x) in l %}{{ x }}{% endfor %}", "{% for x in (l if t else el) %}{{ x }}{% endfor %}", "{% for x in l if t else el %}{{ x }}{% endfor %}",
    "{% for x in l[1:] %}{{ x }}{% endfor %}", "{% for x in l|sort %}{{ x }}{% endfor %}", "{% for x in l|reverse %}{{ loop.index }}{{ x }}{{ loop.length }} {% endfor %}", "{% for x in l|map('string') %}{{ loop.last }}{{ loop.length }}{{ x }} {% endfor %}",
    "{% for x in range(3) %}{{ loop.revindex }}{% endfor %}", "{% for g, us in users|groupby('age') %}{{ g }}:{{ us|map(attribute='name')|join(',') }};{% endfor %}", "{% for row in range(5)|batch(2, 0) %}{{ row }}{% endfor %}",
    "{% for x in l %}{% set n = x %}{{ n }}{% endfor %}{{ n }}", "{% set a = 1 %}{% for x in l %}{{ a }}{% set a = a + 1 %}{{ a }} {% endfor %}{{ a }}", "{% for x in l %}{% if x == 1 %}{% set q = x %}{% endif %}{{ q }};{% endfor %}{{ q }}",
    "{% set ns = namespace(c=0) %}{% for x in l %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}", "{% set ns = namespace(on=true) %}{% for x in range(5) if ns.on %}{{ x }}{% if x == 2 %}{% set ns.on = false %}{% endif %}{% endfor %}",
    "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}{{ g|first }}", "{% set g = d|items %}{% for k, v in g %}{{ k }}{% endfor %}|{% for k, v in g %}{{ k }}{% endfor %}", "{% set g = l|select('odd') %}{{ 3 in g }}{{ g|list }}", "{% set g = l|map('string') %}{{ g[0] }}|{{ g is iterable }}{{ g is sequence }}{{ 'y' if g }}", "{% for x in l|map('nope') %}{% endfor %}",
    "{% for x in l %}{% set ns = namespace() %}{% set ns.x = x %}{{ ns.x }}{% endfor %}", "{% for a in l %}{% for b in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for x in d.values() %}{{ x }};{% endfor %}", "{% for x in loop %}{% endfor %}|",
    "{% for m in messages %}{{ m['role'] }}: {{ m.content }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for m in messages[::-1] %}{{ messages|length - 1 - loop.index0 }}{{ m.content }} {% endfor %}", "{% for x in l|unique %}{{ x }}{{ loop.last }}{% endfor %}",
    # set
    "{% set x = 1 %}{{ x }}", "{% set x = 1, 2 %}{{ x }}", "{% set x, y = 1, 2 %}{{ y }}{{ x }}", "{% set x, y = y, x %}{{ x }}", "{% set (x, y) = [1, 2] %}{{ x }}{{ y }}", "{% set a, b = l %}", "{% set a, b, c, = l %}{{ a }}{{ b }}{{ c }}", "{% set a, b = 5 %}", "{% set a, b = undef %}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper | replace('A', 'z') %}a{{ n }}b{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}", "{% set x %}\n  a\n{% endset %}{{ x }}", "{% set x = x|default(5) %}{{ x }}", "{% set s = s ~ '!' %}{{ s }}",
    "{% set none = 1 %}", "{% set true = 1 %}", "{% set 1 = 2 %}", "{% set x.y = 1 %}", "{% set d.x = 1 %}", "{% set x = %}", "{% set x %}", "{% set = 1 %}", "{% set x == 1 %}", "{% set x 1 %}", "{% set x = 1", "{% set x = (1, %}", "{% set x = 1 2 %}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns }}", "{% set ns = namespace(a=1) %}{% set ns._x = 1 %}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace() %}{% set ns.a.b = 1 %}", "{% set ns = namespace() %}{{ ns.x }}|{{ ns.x.y }}",
    "{% set ns = namespace(items=[]) %}{% for x in l %}{% set ns.items = ns.items + [x * 2] %}{% endfor %}{{ ns.items }}", "{% set ns = namespace(t='') %}{% for x in ls %}{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.t }}", "{% set a = [1] %}{% set b = a + [2] %}{% set c = a + [3] %}{{ a }}{{ b }}{{ c }}", "{% set a = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' ~ n %}{% set b = a ~ 'b' %}{% set c = a ~ 'c' %}{{ a }} {{ b }} {{ c }}", "{% set a = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' + s %}{% set b = a[:-1] + 'b' %}{% set c = a[1:] + 'c' %}{{ a }} {{ b }} {{ c }}",
    "{% set ns = namespace(a=namespace(b=1)) %}{{ ns.a.b }}", "{% set f = s.upper %}{{ f() }}", "{% set range = 5 %}{{ range }}",
    # macros
    "{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1, a=2) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}", "{% macro m(a) %}{{ kwargs.b }}{% endmacro %}{{ m(a=1, b=2) }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a=n) %}{{ a }}{% endmacro %}{{ m() }}",
    "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m() %}", "{% macro 1() %}{% endmacro %}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}", "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% macro m() %} a {% endmacro %}[{{ m()|trim }}]", "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro %}{{ m('q') }}", "{% macro m() %}a{% endmacro %}{{ m() ~ m() }}{{ m }}{{ m.name }}{{ m.arguments }}{{ m.caller }}",
    "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m(5) %}<{{ y }}>{% endcall %}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{{ n }}{% endcall %}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m() %}{{ kwargs.caller is defined }}{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}", "{% macro m(caller=none) %}{{ caller() if caller }}{% endmacro %}{{ m() }}{% call m() %}z{% endcall %}", "{% call 5 %}x{% endcall %}", "{% call m %}x{% endcall %}", "{% call s.upper() %}x{% endcall %}", "{% macro m(a) %}{{ caller(a, b=2) }}{% endmacro %}{% call(a, b=1) m(3) %}{{ a }}{{ b }}{% endcall %}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% for x in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ loop }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}|", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% if t %}{% macro m() %}c{% endmacro %}{% endif %}{{ m() }}",
    "{% macro m(x) %}{% if x is mapping %}{% for k, v in x.items() %}{{ k }}:{{ m(v) }};{% endfor %}{% else %}{{ x }}{% endif %}{% endmacro %}{{ m(d) }}", "{% macro m(*a) %}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}", "{% set ns = namespace(x=0) %}{% macro m() %}{% set ns.x = ns.x + 1 %}{% endmacro %}{{ m() }}{{ m() }}{{ ns.x }}", "{% macro m(a, b='x') %}{{ a ~ b }}{% endmacro %}{{ l|map('string')|map('upper')|join }}{{ m(b='y', a='z')|upper }}",
    # filter, with, generation, others
    "{% filter upper %}a{{ n }}b{% endfilter %}", "{% filter replace('a', 'b')|upper %}aaa{% endfilter %}", "{% filter nope %}{% endfilter %}", "{% filter upper %}", "{% filter %}x{% endfilter %}", "{% filter indent(2, true) %}\na\nb\n{% endfilter %}", "{% filter upper %}{% set q = 1 %}{{ q }}{% endfilter %}{{ q }}", "{% filter trim %}  {{ s }}  {% endfilter %}|",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a }}", "{% with a = 1 b = 2 %}{% endwith %}", "{% with a %}{% endwith %}", "{% with a, b = 1, c = 2 %}{% endwith %}", "{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% generation %}a{{ n }}{% endgeneration %}", "{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}", "a\n  {%- generation -%}\n  b  {%- endgeneration -%} \nc", "{% for x in l %}{% generation %}{{ loop.index }}{{ x }}{% endgeneration %}{% endfor %}", "{% generation %}", "{% generation x %}{% endgeneration %}",
    "{% print 1, 2 %}", "{% print s %}", "{% autoescape false %}{{ html }}{% endautoescape %}", "{% block b %}x{{ n }}{% endblock %}", "{% block b %}x{% endblock b %}", "{% block b %}x{% endblock c %}", "{% block b %}{% endblock %}{% block b %}{% endblock %}", "{% set q = 1 %}{% for x in l %}{% block b %}{{ q }}{{ x is defined }}{% endblock %}{% endfor %}",
    "{% do x %}", "{% nope %}", "{% 5 %}", "{% 'a' %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}", "{% trans %}x{% endtrans %}", "{% debug %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}", "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner() %}{{ j() }}{{ j() }}",
    "{{ raise_exception('Only user and assistant roles are supported!') }}", "{% if t %}{{ raise_exception('x') }}{% endif %}", "{{ raise_exception(undef) }}", "{{ 1 }}{{ undef.x }}", "{{ [1, 2][::-1] }} {{ (1, 2, 3)[::2] }}", "{{ s }}{{ n }}{{ f }}{{ t }}{{ none_ }}{{ l }}{{ d }}{{ undef }}", "{{ 'a' if t }}{{ 'b' if no }}",
    "{{ a if a is defined else 'x' }}", "{{ messages[0]['content'] + '\\n' + messages[-1]['content'] }}", "{% set m = messages[1:] if messages[0].role == 'user' else messages %}{{ m|length }}", "{{ '<|im_start|>' + messages[0].role + '\\n' + messages[0].content + '<|im_end|>\\n' }}", "{{ ('a', 'b')|join }}{{ {'x': 1}|length }}", "{{ x.y.z }}", "{{ d.c.x.z }}", "{% set x = d.c.x %}{{ x }}|{{ x is undefined }}{{ x.y }}",
    "{{ '\u00e9'|upper }}{{ '\U0001f642'|length }}", "{%- for message in messages -%}\n  {{- message.role -}}\n{%- endfor -%}\n", "{% set é = 1 %}{{ é }}", "{% set x2_y = 1 %}{{ x2_y }}", "{{ 1if t else 2 }}", "{{1}}{{ 2}}{{3 }}", "{{ not }}", "{{ t is not }}", "{{ 1 is 2 }}", "{{ in }}", "{{ for }}", "{{ set }}", "{{ if }}", "{{ is }}", "{{ not in l }}", "{{ 1 not l }}",
    "{{ s.format }}|"[:0] + "{{ '%s' % s }}", "{{ {'a': [1, 2, {'b': (3,)}]} }}", "{% if 'a' in 'abc' and not 'z' in 'abc' %}y{% endif %}", "{% if n is defined and n is not none and n > 3 %}y{% endif %}", "{% if not loop is defined %}y{% endif %}", "{% if messages|length % 2 == 1 %}odd{% endif %}", "{% if (messages[0].role == 'user') != (0 % 2 == 0) %}bad{% else %}good{% endif %}",
    "{{ l|sort|first + l|max }}", "{% set x = l|sum if l else 0 %}{{ x }}", "{{ none_ ~ '' }}{{ none_|string|length }}", "{{ 'abc'|list|tojson }}", "{{ {}.get('x', {}).get('y', 'z') }}", "{{ (d.get('c') or {}).get('d') }}", "{% set content = 'a</think>b' %}{{ (content.split('</think>')|last).lstrip('\\n') }}|{{ content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
    "{% set a = namespace(x=[]) %}{% set a.x = a.x + ['q'] %}{{ a.x }}{% set b = a %}{% set b.x = 1 %}{{ a.x }}", "{{ [namespace(a=1).a, dict(b=2)['b']] }}", "{{ ['a', 'b']|map('upper')|join(', ') }}", "{{ range(3) == range(0, 3) }}{{ [1] is sameas [1] }}", "{{ (1, 2) in [(1, 2)] }}{{ {'a': 1} in [{'a': 1}] }}",
]
