"""Answers as models write them and references as data sets do: what is the same, and what only looks alike."""

import time
from collections.abc import Iterator

import pytest

from r3env.core import Reason
from r3env.grading import grade
from r3env.grading.fast_path import fast_equal, spelling_pair

# Each line is an answer and a reference; the first texts hold equal ones, the second different ones.
KINDS = {
    "mixed numbers": (
        r"""
1 1/4 | 5/4
1 1/4 | 1.25
1.25 | 1 1/4
5/4 | 1 1/4
2 1/2 | 5/2
-3 1/3 | -10/3
-10/3 | -3 1/3
1 1/4 cups | 5/4
1\,1/4 | 1.25
1\ 1/4 | 5/4
1~1/4 | 1.25
1\ \frac{1}{4} | 5/4
$2\frac{1}{2}$ | 2 1/2
1 1/4 | 1\frac{1}{4}
12 3/4 | 51/4
1 ½ | 1.5
\text{1 1/2} | 3/2
x = 1 1/2 | 3/2
7 1/2\% | 7.5\%
\$1 1/4 | 1.25
1,234 1/2 | 1234.5
2 1/2 \text{ hours} | 2.5
2 and 1/2 | 2.5
-2 \text{ and } \frac{1}{2} | -\frac{5}{2}
2 and 1/2 | 2, \frac12
2 1/2 | 2.5 cups
(1 1/2, 3) | (1.5, 3)
1 1/4, 2 1/2 | 1.25, 2.5
1 000 | 1000
""",
        r"""
1 1/4 | 11/4
11/4 | 1 1/4
1 1/4 | 1/4
1 1/4 | 1
1 1/4 | 5/8
1, 1/4 | 5/4
1 14 | 15
1 14 | 1 1/4
1 14 | 114
-3 1/3 | -8/3
-1 1/2 | 1.5
12 3/4 | 123/4
2 5/4 | 25/4
2 5/4 | 13/4
2 5/4 | 5/2
3 2 1/4 | 21/4
1 1/4 1/4 | 3/2
1.5 1/4 | 1.75
1/2 1/4 | 3/4
1 000 | 1
0 1/2 | 5
2 and 1/2 | 2
2 and 3/2 | 7/2
-2 and 1/2 | -1.5
""",
    ),
    "nouns and units behind a number": (
        r"""
9 | 9 (apples)
9 (apples) | 9
9 (apples) | 9 \text{ apples}
9 \text{ apples} | 9 (apples)
9 | 9 apples
9 apples | 9
9 eggs | 9
3 people | 3
9 total apples | 9
12 | 12 (cm)
12 (\mathrm{cm}^2) | 12
12\ (\text{cm}) | 12
12 \text{ (cm)} | 12
120 | 120 (m^2)
2.5 | 2.5 (hours)
\frac{1}{2} | \frac{1}{2} (\text{hour})
\frac34 | 3/4 (of the cake)
50 | 50 (km/h)
60 (square meters) | 60
1,200 (students) | 1200
3\sqrt{2} (\text{cm}) | 3\sqrt{2}
$5$ (dollars) | 5
9 | $9$ (apples)
18 dollars per day | 18
\$18 per day | 18
\$18/\text{day} | 18
60 mph | 60 miles per hour
5 km per hour | 5 km/h
5\,\Omega | 5
25¢ | 25 cents
5€ | 5
US\$5 | 5
USD 5 | \$5
9 months | 9 (months)
3:30 \text{ p.m.} | 3:30 PM
3:30 PM | 3:30
02:30 | 2:30
1.5 \text{ million} | 1500000
98^\circ F | 98^\circ
98 °F | 98 degrees Fahrenheit
5 percent | 5 percent of people
\$2 million | 2,000,000
""",
        r"""
9 (10) | 9
9 | 9 (10)
9 (ten) | 9
9 (apples) | 10
(1,2) | 1
1 | (1,2)
f(9) | 9
9 | f(9)
2 (x+1) | 2
2 | 2 (x+1)
9 (x) | 9
9 | 9 (n)
3 | 3 \pmod 7
3 (mod 7) | 3
3 (mod 7) | 3 (mod 5)
9 (not 10) | 9
9 (or 10) | 9
9 (if n is even) | 9
9 (negative) | 9
9 (at least) | 9
9 (million) | 9
9 million | 9
9 (base eight) | 9
9 (cm) | 9 (m)
9 (cm) | 9 kg
9 hours | 9 (minutes)
9 apples, 3 pears | 9
9 apples and 3 pears | 9
9 apples or 3 | 9
9 thirds | 9
9 tenths | 9
9 dozen | 9
9 tens | 9
9 abc | 9
9 sinx | 9
9 theta | 9
3:30 PM | 3:30 AM
2:30 | 1:15
15 million | 1500000
98^\circ F | 98^\circ C
5\text{ degrees Celsius} | 5^{\circ}\mathrm{F}
45^\circ | 45\%
\$25 | 25\%
25\% | 25 dollars
5\% | 5 \text{ cm}
""",
    ),
    "conditions": (
        r"""
f(x)=cx | f(x)=cx \text{ for any constant } c
f(x)=cx \text{ for any constant } c | f(x)=cx
cx | f(x)=cx \text{ for any constant } c
f(x)=cx \text{ for some constant } c | f(x)=cx \text{ for any constant } c
f(x)=cx | f(x) = cx \text{, where } c \text{ is a real number}
f(x)=cx | f(x)=cx \text{ where } c \text{ is a constant}
f(x)=cx | f(x)=cx, c \text{ is a constant}
f(x)=cx | f(x)=cx \text{ (where c is any real constant)}
f(x)=x+c | f(x)=x+c, c \in \mathbb{R}
f(x)=x+c \text{ where } c \in \mathbb{R} | f(x)=x+c
f(x)=ax+b | f(x)=ax+b \text{ for some real numbers } a, b
f(x)=ax+b | f(x)=ax+b \text{ with } a,b\in\mathbb{R}
2\pi k | 2\pi k \text{ for any integer } k
\frac{\pi}{4}+k\pi | \frac{\pi}{4}+k\pi, \text{ where } k \text{ is an integer}
k\pi, k\in\mathbb{Z} | k\pi \text{ where } k \text{ is an integer}
n = 3k \text{ for positive integers } k | n = 3k, k \in \mathbb{N}
f(x)=2x | f(x)=2x \text{ for all } x
f(x)=2x for all x | 2x
f(x)=2x\ \forall x\in\mathbb{R} | f(x)=2x
2^n | 2^n \text{ for all } n \geq 1
y = Ce^x | y = C e^{x}, \text{ where } C \text{ is an arbitrary constant}
(t, 2t), t \in \mathbb{R} | (t,2t)
""",
        r"""
f(x)=x | f(x)=cx \text{ for any constant } c
f(x)=cx \text{ for any constant } c | f(x)=cx^2 \text{ for any constant } c
f(x)=cx | f(x)=cx \text{ if } n \text{ is even}
f(x)=cx \text{ for } c = 1 | f(x)=cx \text{ for any constant } c
f(x)=0 | f(x)=0 \text{ and } f(x)=cx \text{ for any constant } c
f(x)=cx | f(x)=0 \text{ and } f(x)=cx \text{ for any constant } c
x=2 | x=2 \text{ when } n \text{ is even}
2 | 2 \text{ if } n \text{ is even}, 3 \text{ if } n \text{ is odd}
n^2 \text{ if } n \text{ is even} | n^2
2x \text{ for } x < 0 | 2x
2x | 2x \text{ for } x<0, \text{ and } 3x \text{ for } x>0
n | n \text{ for odd } n
1 \text{ for } n=2 | 1
1 | 1 \text{ if } n=2 \text{ and } 0 \text{ otherwise}
k\pi, k\in\mathbb{N} | k\pi, k\in\mathbb{Z}
k\pi | 2k\pi, k\in\mathbb{Z}
x | x, y \in \mathbb{Z}
x=1 | x=1, y \in \mathbb{R}
""",
    ),
    "yes and no": (
        r"""
True | True
true | True
Yes | True
\text{True} | True
\text{yes} | True
TRUE. | True
False | False
false | False
No | False
\text{False} | False
\text{No.} | False
True | Yes
false | no
""",
        r"""
True | False
Yes | False
No | True
False | True
True | 1
0 | False
maybe | True
yes or no | True
True, False | True
not True | True
True and False | True
""",
    ),
    "lists": (
        r"""
2, 3 | 2, 3
3, 2 | 2, 3
[2, 3] | 2, 3
2 and 3 | 2, 3
2 \text{ or } 3 | 2, 3
\{2,3\} | 2, 3
(2,3) | 2, 3
x=2, x=3 | 2, 3
2; 3 | 2, 3
[1, 2, 3] | 1, 2, 3
1, 2, 3 | [1, 2, 3]
red, blue | red, blue
1000, 2000 | 1,000, 2,000
2{,}000 \text{ and } 1{,}000 | 1,000, 2,000
1,000, 2,000 | 1000, 2000
(1000,2000) | (1,000, 2,000)
[1000,2000) | \left[1,000, 2,000\right)
\{2000,1000\} | \{1,000, 2,000\}
67890, 12345 | 12,345, 67,890
1, 300,200 | 1, 200, 300
100,010, 001 | 100, 010, 001
1,200, 300 | 1, 200, 300
3,400, 1,200 | 1,200, 3,400
1,200, 3400 | 1,200, 3,400
1, 200, 3, 400 | 1,200, 3,400
""",
        r"""
1000 | 1,000, 2,000
(2000, 1000) | (1,000, 2,000)
2,000, 1 | 1,000, 2,000
1,400, 3,200 | 1,200, 3,400
(1,400, 3,200) | (1,200, 3,400)
1, 2 | 1,000, 2,000
1200, 300 | 1, 200, 300
1200, 300 | 1,200, 300
(1200) | (1,200)
(1200), (3400) | (1,200), (3,400)
x_{100200}, y_{300400} | x_{100,200}, y_{300,400}
2 | 2, 3
2, 3 | 2
2, 4 | 2, 3
2, 3, 4 | 2, 3
[2, 3] | 2
[5, 6] | 5
2, 3 | [2, 3]
[0,1] | 0, 2
[1,2] | (1,2)
[2,3] | \{2,3\}
[3,2,1] | [1,2,3]
[1,2,3] | 1,2,4
2, 3 | (2,3]
""",
    ),
    "products": (
        r"""
(3)(4) | 12
2(15) | 30
(2)(3)(4) | 24
10+2(3) | 16
-2(3) | -6
\frac{5(4)}{2} | 10
3(\frac12) | 1.5
\binom52(3) | 30
4\binom{5}{2} | 40
4\pi(3)^2 | 36\pi
\binom{5}{2}\binom{4}{2} | 60
(3)4 | 12
\left(3\right)\left(4\right) | 12
2^{(3)(2)} | 64
x = 2(3) | 6
2\frac12 | \frac52
3 1/2 | 3.5
\log_2(8) | 3
\log_{2}(8) | 3
a_2(3) | a_2(3)
f_1(2) | f_1(2)
100(1.05)^3 | 115.7625
\sum_{k=0}^{5}\binom{5}{k} | 32
6 \cdot m | 6m
6 \times m | 6m
(-2)(3) | -6
\frac{10}{2}(11) | 55
(2)\frac{1}{2} | 1
\frac{x+1}{2} | \frac{1}{2}(x+1)
""",
        r"""
(3)(4) | 7
2(15) | 17
(2)(3)(4) | 9
\binom52(3) | 13
4\binom{5}{2} | 14
""",
    ),
    "letters": (
        r"""
\frac{dv}{dt}m | m\frac{dv}{dt}
\frac{dx}{dt} = -a+kx | \frac{d x}{d t}=k x-a
\frac{d}{dx}x^2 | 2x
\frac{d}{dx}(5) | 0
(\gamma-1)(\gamma+1) | \gamma^2-1
1+\gamma_1 | \gamma_1+1
\Gamma(n+1) | n!
\frac{gm}{m+M} | \frac{m}{M+m}g
\pi R_1^2-\pi r_1^2 | \pi(R_1^2-r_1^2)
\frac{GmM}{r^2} | \frac{GMm}{r^2}
2r | 2R
Mm+M | M(m+1)
\pi R^2+\pi Rr | \pi R(R+r)
\frac{Mv-MV}{m} | \frac{M(v-V)}{m}
E_2+E_1 | E_1+E_2
E_0/c | \frac{E_0}{c}
5 m | 5m
kd | dk
\frac{dn}{2} | \frac{nd}{2}
\sqrt2 d | d\sqrt{2}
da-cb | ad-bc
left-handed | Left-handed
d n k | k\cdot d\cdot n
y\,dx + x\,dy | x\,dy + y\,dx
\frac12 | \int_0^1 x\,dx
""",
        r"""
0 | m\frac{dv}{dt}
\frac{dx}{dy} | \frac{dy}{dx}
\frac{y}{x} | \frac{dy}{dx}
kx=a | \frac{d x}{d t}=k x-a
2xy | x\,dy + y\,dx
\gamma-1 | \gamma^2-1
(\gamma-2)m | (\gamma-1)m
1 | \gamma_1+1
\frac12 g | \frac{m}{M+m}g
\frac{m}{M+m}g | \frac12 g
\frac{M}{m+M}g | \frac{m}{M+m}g
0 | \pi(R^2-r^2)
\pi(R^2-r^2) | 0
(n+2)m | n+2m
3m | 1+2m
(5-2)h | 5-2h
""",
    ),
    "equations and their names": (
        r"""
x=4 \lor x=5 | 4,5
x=4 \quad x=5 | 4,5
x=4\\x=5 | x=4, x=5
a=2 \land b=3 | a=2, b=3
x=5 \quad x=5 | 5
x=2+3=5 | 5
x=2,1 | x=1,2
x=1 \text{ and } 2 | x=1,2
x=2,-2 | x=\pm2
S_{\max} = 12 | 12
\max S = 12 | 12
\det A = 12 | 12
P(A|B)=12 | 12
\text{Total for both} = 12 | 12
P(\text{not } A) = \frac{2}{3} | \frac23
P(A\cap B)=12 | 12
n^2-n-1 | m_{\max }=n^{2}-n-1
m_{\max} = n^2-1-n | n^2-n-1
""",
        r"""
x=4 \lor x=5 | 5
x=4 \vee x=5 | 5
x=4 \quad x=5 | 5
x=4\\x=5 | 5
x=7 \land y=5 | 5
x=1,3 | x=1,2
y=1,2 | x=1,2
7 \text{ if } n=5 | 5
7 \text{ when } x=5 | 5
6 \text{ because } 2+3=5 | 5
\text{not } x=5 | 5
""",
    ),
    "elements and dots": (
        r"""
1,2,1 | 1,1,2
\{1,1,2\} | \{1,2\}
1, 2, and 3 | 1,2,3
1, 2 \text{ and } 3 | 1,2,3
1,-1,2 | \pm1, 2
(1,2) and (3,4) | (3,4),(1,2)
1,2,...,10 | 1,2,\ldots,10
1, 2, \dots, 10 | 1,2,\cdots,10
\{1,2,3,\dots\} | \{1,2,3,\ldots\}
0.333\ldots | \frac13
3.14159265\ldots | \pi
""",
        r"""
1,1,2 | 1,2
1,2 | 1,1,2
16,3,1,1 | 16,3,1
\{1,2,3,\ldots\} | \{1,2,3\}
\{1,2,3\} | \{1,2,3,\ldots\}
1,2,\ldots,10 | 1,2,10
1,2,\ldots,11 | 1,2,\ldots,10
5,6,\ldots | 5
""",
    ),
    "inequalities": (
        r"""
2>x>1 | 1<x<2
1<x<2 | 2>x>1
5\ge x\ge-3 | -3\le x\le5
c>b>a | a<b<c
2>x>1 | (1,2)
x<2, x>1 | 1<x<2
1<x<2 | x>1, x<2
3<x<4, 1<x<2 | 1<x<2, 3<x<4
""",
        r"""
2\ge x>1 | 1<x<2
\emptyset | 1<x<2, 3<x<4
5<x<6, 7<x<8 | 1<x<2, 3<x<4
2>x>1 | (1,2]
x<-1, x>1 | (-1,1)
x<2, y>1 | 1<x<2
""",
    ),
    "further spellings": (
        r"""
90^\circ | \frac{\pi}{2}
\frac{5\pi}{6} | 150^\circ
\sin(30^\circ) | 0.5
x < -1 \text{ or } x > 1 | (-\infty,-1)\cup(1,\infty)
-1 < x < 0 \text{ or } x \ge 1 | (-1,0)\cup[1,\infty)
x > 1 or x < -1 | x < -1 \text{ or } x > 1
\text{all real numbers} | \mathbb{R}
\text{All real numbers} | (-\infty, \infty)
\mathbb{R} \backslash \{2\} | \mathbb{R} \setminus \{2\}
\emptyset | no solution
\text{There are no solutions} | no solution
\text{empty set} | \varnothing
\text{infinity} | \infty
\begin{cases} x=1\\ y=2\end{cases} | (1,2)
(1,2,3) | \begin{pmatrix}1\\2\\3\end{pmatrix}
{5 \choose 2} | 10
25 percent | 0.25
5\text{\%} | 0.05
0.333... | \frac13
0.1666\ldots | \frac16
3{:}30 | 3:30
3 \text{ to } 2 | 3:2
n \equiv 1 \pmod{4} | n \equiv 1 \pmod 4
1 \mod 4 | 1 \pmod 4
8 \text{ hours and } 30 \text{ minutes} | 8 hours and 30 minutes
e^{x} | \mathrm{e}^x
x₁ | x_1
\boldsymbol{5} | 5
\textcolor{red}{5} | 5
\underline{5} | 5
`5` | 5
“5” | 5
approximately 5 | 5
\text{Option B} | B
Choice (A) | A
\log_e 2 | \ln 2
{\bf 5} | 5
\bf{5} | 5
{\rm 5\ cm} | 5
\Large 5 | 5
5\\ | 5
3x10^8 | 3\times10^8
2pi | 2\pi
pi/4 | \frac{\pi}{4}
x**2+1 | x^2+1
2**10 | 1024
1∶2 | 1:2
33.\overline{3}\% | \frac{100}{3}\%
\text{exactly } 12 | 12
\text{all integers} | \mathbb{Z}
an ellipse | \text{ellipse}
x > -1 \text{ and } x \le 2 | (-1,2]
x \ge 1 and x \le 5 | 1 \le x \le 5
12 | f'(2)=12
B' \cup A | A \cup B'
C \cap A^c \cap B | A^{c}\cap B\cap C
-4 | f''(0) = -4
\sqrt2 | f(-1)=\sqrt{2}
12 \text{ cm} | g(1, 2) = 12
""",
        r"""
90^\circ | \frac{\pi}{3}
90^\circ | 90\pi
x < -1 \text{ or } x > 1 | (-1,1)
x<-1 or x>1 | (-\infty,-1]\cup[1,\infty)
x<-1 or y>1 | (-\infty,-1)\cup(1,\infty)
x > 1 | x<-1 \text{ or } x>1
\text{all real numbers except } 0 | \mathbb{R}
\text{all integers} | \mathbb{R}
0 | no solution
\emptyset | 0
\text{infinity} | -\infty
\begin{cases} x=1\\ y=2\end{cases} | (2,1)
(1,2,3) | \begin{pmatrix}1\\2\\4\end{pmatrix}
0.333... | 0.333
0.12345... | 0.12345
1 to 2 | 2:1
2 to 3 | 2
1 \pmod 4 | 1
1 | 1 \pmod 4
1 \pmod 4 | 1 \pmod 3
\text{about } 5 | 6
\text{Option A} | B
2pi | 2
2**10 | 20
x**2 | 2x
x < 1 \text{ and } x > 2 | x < 1 \text{ or } x > 2
x > -1 \text{ and } x \le 2 | (-1,2)
x > -1 \text{ and } y < 2 | (-1,2)
x > 1 and x < 2 or x > 3 | (1,2)
\text{all integers} | \mathbb{N}
13 | f'(2)=12
A' \cup B | A \cup B'
A \cap B' | A \cup B'
A \cap B \cup C | A \cap C \cup B
f(3)=12 | f(2)=12
f(2)=12 | f'(2)=12
12 | x(x-1)=12
the odd | an even
""",
    ),
}


def _pairs(lines: str) -> Iterator[tuple[str, str]]:
    for line in lines.strip().splitlines():
        answer, _, gold = line.partition(" | ")
        yield answer, gold


def _wrong(lines: str, reason: Reason) -> list[tuple[str, str, Reason]]:
    judged = (
        (answer, gold, grade(f"\\boxed{{{answer}}}", gold, timeout_s=20).reason) for answer, gold in _pairs(lines)
    )
    return [one for one in judged if one[2] is not reason]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_in_another_spelling_is_correct(kind: str) -> None:
    assert _wrong(KINDS[kind][0], Reason.EQUAL) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_looks_alike_is_incorrect(kind: str) -> None:
    assert _wrong(KINDS[kind][1], Reason.DIFFERENT) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_reference_equals_itself(kind: str) -> None:
    golds = {gold for lines in KINDS[kind] for _, gold in _pairs(lines)}
    assert [gold for gold in golds if not grade(f"\\boxed{{{gold}}}", gold, timeout_s=20).correct] == []


@pytest.mark.parametrize(
    "unit",
    [
        "1 1/", "1 1/4 ", "9 (a", "9 apples ", "(apples)", "for any real ", ", c", "\\text{for}", " where c is a",
        "a, a and ", "x<1 or ", "[1,", "1 million ", "no solution ", "3:30 ", "0.333", "12", "\\mu ", "\\in ", "/day",
        "(2)", "( ", "\\binom{2}{", "x=4 ", "= | ", "\\quad ", "d", "Mm", "...", "1.", ", and ", "2>x>", "x<2,", "if ",
    ],
)  # fmt: skip
def test_rubbish_of_these_kinds_is_compared_in_linear_time(unit: str) -> None:
    for length in (300, 400, 2000):
        started = time.process_time()
        fast_equal("5", "9 " + (unit * length)[: length - 2])
        spelling_pair("5", "9 " + (unit * length)[: length - 2])
        assert time.process_time() - started < 10, "an expression that tries every split takes hours"
