"""Responses with their gold answers and verdicts, written for this project, grouped by family.

Each line is (answer, gold): what stands in the box and the reference. `RESPONSES` has whole responses instead.
"""

from r3env.core import Reason

Pairs = list[tuple[str, str]]

EQUAL: dict[str, Pairs] = {
    "integers": [
        ("42", "42"), ("042", "42"), ("+42", "42"), ("-17", "-17"), ("- 17", "-17"), ("42.", "42"), ("42.0", "42"),
        ("42.000", "42"), ("-0", "0"), ("{42}", "42"), ("$42$", "42"), (r"\(42\)", "42"), (r"\[42\]", "42"),
        ("$$42$$", "42"), (r"\text{42}", "42"), (r"\mathbf{42}", "42"), ("((42))", "42"), ("**42**", "42"),
        (r"\displaystyle 42", "42"), (r"\approx 42", "42"), ("= 42", "42"), (r"\left(42\right)", "42"),
        ("10^2", "100"), (r"2^{10}", "1024"), ("5!", "120"), (r"\binom{6}{3}", "20"), (r"6\cdot 7", "42"),
        (r"6 \times 7", "42"), ("40+2", "42"), (r"\sqrt{49}", "7"), (r"|-3|", "3"), (r"\lfloor 3.7 \rfloor", "3"),
    ],
    "unicode": [
        ("\u22125", "-5"), ("\u20135", "-5"), ("\uff14\uff12", "42"), ("1\u202f000", "1000"), ("1\u00a0000", "1000"),
        ("42\u200b", "42"), ("2\u03c0", r"2\pi"), ("x\u00b2", "x^2"), ("\u221a3", r"\sqrt{3}"),
        ("\u221a(3)", r"\sqrt{3}"), ("\u00bd", "1/2"), ("6\u00d77", "42"), ("6\u00b77", "42"), ("84\u00f72", "42"),
        ("x \u2264 3", r"x \le 3"), ("x \u2265 3", r"x \geq 3"), ("\u00b12", r"\pm 2"), ("\u2205", r"\emptyset"),
        ("(\u2212\u221e, 3)", r"(-\infty, 3)"), ("\uff081\uff0c2\uff09", "(1,2)"), ("45\u00b0", "45"),
        ("[0,1) \u222a (2,3]", r"[0,1)\cup(2,3]"),
    ],
    "separators": [
        ("1,000,000", "1000000"), (r"1\,000\,000", "1000000"), ("1{,}000{,}000", "1000000"), (r"1,\!000", "1000"),
        ("1 000 000", "1000000"), ("12~345", "12345"), (r"12\;345", "12345"), ("1,234.5", "1234.5"),
        ("1000000", "1,000,000"), (r"1\,000\,000", "1,000,000"), (r"1,000\pi", r"1000\pi"),
        (r"1{,}000\sqrt{2}", r"1000\sqrt{2}"), (r"\frac{1{,}000}{3}", r"\frac{1000}{3}"), ("x = 2,500", "2500"),
        (r"2{,}500\text{ m}", "2500"), (r"\$1,250.00", "1250"),
    ],
    "fractions": [
        (r"\frac{3}{4}", "3/4"), (r"\dfrac{3}{4}", "3/4"), (r"\tfrac34", "3/4"), (r"\frac34", "0.75"), ("6/8", "3/4"),
        ("0.75", r"\frac{3}{4}"), (r"-\frac{3}{4}", r"\frac{-3}{4}"), (r"\frac{3}{-4}", "-0.75"), ("-3/4", "-0.75"),
        (r"1\frac{1}{2}", "3/2"), (r"1\frac12", "1.5"), (r"-1\frac{1}{2}", "-1.5"), ("8/2", "4"),
        (r"\frac{8}{2}", "4"),
        (r"\frac{{3}}{{4}}", "3/4"), (r"\cfrac{3}{4}", "0.75"), (r"\frac{\frac{1}{2}}{3}", "1/6"),
        (r"\frac3{4}", "3/4"),
        ("3 / 4", "3/4"), (r"\frac{1}{1+\frac{1}{2}}", "2/3"),
    ],
    "decimals": [
        ("0.3333333", r"\frac13"), ("0.142857", r"\frac17"), ("0.500000", r"\frac12"), ("0.125", r"\frac18"),
        ("1.732051", r"\sqrt{3}"), ("(0.333333,1)", r"(\frac13,1)"), ("0.333333", r"33.3333\%"),
        ("0.5", "1/2"), (".5", "0.5"), ("0.50", "0.5"), ("0.333333", "1/3"), ("1/3", "0.333333"),
        ("3.14159265", r"\pi"),
        (r"1.5\times10^{3}", "1500"), (r"1.5 \cdot 10^3", "1500"), ("1.5e3", "1500"), ("2e-3", "0.002"),
        (r"2\times 10^{-3}", "0.002"), (r"3\times10^{8}", "300000000"), ("1.41421356", r"\sqrt{2}"),
    ],
    "repeating decimals": [
        (r"0.\dot{3}", "1/3"), (r"0.\dot3", "1/3"), (r"0.\dot{1}\dot{2}", "4/33"), (r"0.\dot{1}2\dot{3}", "41/333"),
        (r"0.1\dot{6}", r"\frac16"), (r"2.\dot{9}", "3"),
        (r"0.\overline{3}", "1/3"), (r"0.1\overline{6}", r"\frac16"), ("1/3", r"0.\overline{3}"),
        (r"2.\overline{45}", "27/11"),
        (r"0.\overline{9}", "1"), (r"-0.\bar{3}", "-1/3"),
    ],
    "ordinals and vectors": [
        ("10th", "10"), ("10^{th}", "10"), (r"10^{\text{th}}", "10"), (r"10\text{th}", "10"), ("21st", "21"),
        (r"\langle 1,2\rangle", "(1,2)"), (r"\left\langle 1,2\right\rangle", "(1,2)"),
    ],
    "percent": [
        (r"50\%", "50"), ("50%", r"50\%"), ("50", r"50\%"), (r"50\%", "0.5"), ("0.5", r"50\%"), (r"\frac12", r"50\%"),
        (r"12.5\%", r"\frac18"), (r"50 \%", "50"), (r"50\text{ percent}", "50"), ("50 percent", r"50\%"),
        (r"x = 50\%", "50"), (r"50\text{\%}", "50"), ("\uff15\uff10\uff05", "50"),
    ],
    "currency": [
        (r"\$5", "5"), ("$5", "5"), ("5", r"\$5"), (r"\$5.00", "5"), (r"\$ 5", "5"), ("\u20ac5", "5"),
        ("\u00a35", "5"),
        (r"5\text{ dollars}", "5"), ("5 dollars", r"\$5"), ("5 dollars", "5"), (r"-\$5", "-5"),
        (r"\$12,000", "12000"),
        (r"\text{\$5}", "5"), (r"75\text{ cents}", "75"),
    ],
    "degrees": [
        (r"90^\circ", "90"), (r"90^{\circ}", "90"), ("90", r"90^\circ"), (r"90\degree", r"90^\circ"),
        ("90\u00b0", "90"),
        ("90 degrees", "90"), (r"90\text{ degrees}", r"90^\circ"), (r"25^\circ\text{C}", "25"),
        (r"25^{\circ}C", "25"),
        (r"\theta = 30^\circ", "30"), (r"\sin 30^\circ", "1/2"), (r"\cos 60^{\circ}", "0.5"),
    ],
    "units": [
        (r"12\text{ cm}", "12"), (r"12\,\text{cm}", "12"), (r"12\ \mathrm{cm}", "12"), ("12 cm", "12"),
        ("12cm", "12"),
        ("12", r"12\text{ cm}"), (r"12\text{ cm}^2", "12"), (r"12\ \text{cm}^{2}", "12"), ("12 cm^2", "12"),
        (r"12\text{ square units}", "12"), ("12 square units", "12"), (r"60\text{ km/h}", "60"), ("60 km/h", "60"),
        ("60 mph", "60"), (r"60\,\text{mi}/\text{h}", "60"), ("5 m", "5"), ("5m", "5"), (r"9.8\text{ m/s}^2", "9.8"),
        (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}"), (r"\frac{1}{2}\text{ hours}", "0.5"), (r"7\text{ apples}", "7"),
        (r"12\text{ centimeters}", r"12\text{ cm}"), (r"12\text{ sq cm}", r"12\text{ cm}^2"),
        (r"3\pi\text{ ft}", r"3\pi"),
        ("12 inches", "12"), (r"15\text{ ways}", "15"), (r"3\text{ minutes}", "3 min"), (r"x = 5\text{ cm}", "5"),
        (r"40\operatorname{cm}", "40"), (r"\text{5 cm}", "5"), ("12 pounds", "12"),
    ],
    "choices": [
        ("B", "B"), ("(B)", "B"), ("B", "(B)"), (r"\text{B}", "B"), (r"\text{(B)}", "B"), (r"\textbf{(B)}", "B"),
        (r"\mathrm{B}", "B"), ("B.", "B"), ("B)", "B"), (r"\textbf{(B)}\ 12", "B"), (r"\textbf{(B) } 12", "12"),
        (r"\text{(B) } 12", "(B)"), ("B", r"\textbf{(B)}\ 12"), ("12", r"\textbf{(B)}\ 12"), ("(B) 12", "B"),
        ("B. 12", "B"), ("B: 12", "B"), (r"\textbf{(E)}\ \frac{1}{2}", "0.5"),
    ],
    "words": [
        (r"\text{yes}", "Yes"), ("No", "no"), (r"\text{Monday}", "Monday"), ("monday", r"\text{Monday}"),
        ("EVEN", "even"),
        (r"\text{no solution}", "No solution"), (r"\text{No solutions}", "no solution"), (r"\text{Evelyn}", "Evelyn"),
        (r"\textit{true}", "True"), (r"\text{ odd }", "odd"), (r"\mathrm{ellipse}", r"\text{ellipse}"),
        ("DNE", "dne"),
        (r"\text{does not exist}", "Does not exist"),
    ],
    "radicals and constants": [
        (r"\sqrt{12}", r"2\sqrt{3}"), (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), (r"\sqrt2", r"\sqrt{2}"),
        (r"\sqrt[3]{8}", "2"), (r"8^{1/3}", "2"), (r"2\pi", r"\pi\cdot2"), (r"\frac{\pi}{2}", r"\frac12\pi"),
        (r"e^{2}", "e^2"), (r"\ln e", "1"), (r"\log_2 8", "3"), (r"\sin\frac{\pi}{6}", "1/2"), (r"2+3i", "3i+2"),
        (r"(1+i)^2", "2i"), (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"), (r"10^{-3}", "0.001"),
    ],
    "expressions": [
        ("x", "x+0"), ("x+0", "x"), ("x", "2x-x"), ("x", r"1\cdot x"),
        ("1+x", "x+1"), ("(x-1)(x+1)", "x^2-1"), ("x^2+2x+1", "(x+1)^2"), ("2(a+b)", "2a+2b"), ("ba", "ab"),
        (r"\frac{x^2-1}{x-1}", "x+1"), (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"), (r"2^{n+1}", r"2\cdot2^n"),
        ("x*y", "xy"),
        (r"\sin^2 x+\cos^2 x", "1"), (r"\frac{1}{x}", "x^{-1}"), ("x_1+x_2", "x_2+x_1"), (r"-(a-b)", "b-a"),
    ],
    "equations": [
        ("x=5=5", "5"), ("1/3=0.333333", "1/3"), ("1/7=0.14", "0.14"), (r"x=\frac{10}{2}=5", "5"),
        ("x=5", "5"), ("x = 5", "5"), ("5", "x=5"), ("x=5", "x = 5"), ("5=x", "x=5"), (r"\theta = 5", "5"),
        ("x_1=5", "5"),
        ("f(x)=2x", "2x"), ("y=2x+1", "y = 1+2x"), ("y=2x+1", "2x+1"), ("2y=4x", "y=2x"), ("y-2x=1", "y=2x+1"),
        ("x=2, y=3", "(2,3)"), (r"x = 2 \text{ or } x = 3", "2,3"), ("x=2,3", "2,3"), (r"x=\pm2", "2,-2"),
        ("x^2+y^2=4", "y^2+x^2=4"), ("n = 1,000", "1000"), (r"x \approx 5", "5"), (r"S = \frac{1}{2}", "0.5"),
    ],
    "sets": [
        (r"x\in\{1,2\}", r"\{1,2\}"), (r"x=\{1,2\}", "1,2"), (r"x\in\{1,2\}", "2,1"),
        (r"\{1,2,3\}", r"\{3,2,1\}"), ("1,2,3", r"\{1,2,3\}"), ("3, 2, 1", "1,2,3"), (r"1\text{ and }2", "1,2"),
        (r"1 \text{ or } 2", r"\{1,2\}"), (r"\left\{1, 2\right\}", r"\{1,2\}"), (r"\{\frac12, 1\}", r"\{0.5, 1\}"),
        (r"\varnothing", r"\emptyset"), (r"\{\}", r"\emptyset"), (r"\pm 3", "-3, 3"),
        (r"1 \pm \sqrt{2}", r"1+\sqrt2, 1-\sqrt2"),
        (r"\{1.0, 2\}", r"\{1,2\}"), ("x = 1, x = 2", "1,2"), (r"\{(1,2),(3,4)\}", r"\{(3,4),(1,2)\}"),
    ],
    "tuples": [
        ("(1,2)", "(1, 2)"), (r"\left(1,2\right)", "(1,2)"), ("(1.0, 2)", "(1,2)"), (r"(\frac12, 3)", "(0.5,3)"),
        ("(1,2,3)", "( 1, 2, 3 )"), ("(-1,\u22122)", "(-1,-2)"), ("(1,2),(3,4)", "(1,2), (3,4)"),
        (r"(3,\sqrt{4})", "(3,2)"),
        ("((1,2))", "(1,2)"), (r"(3,\frac{\pi}{2})", r"\left(3,\frac{\pi}{2}\right)"), ("(x,y)=(1,2)", "(1,2)"),
        ("(a,b)", "(a, b)"),
    ],
    "intervals": [
        ("[0,1]", "[0, 1]"), (r"\left[0,1\right)", "[0,1)"), (r"(-\infty,3]", r"(-\infty, 3]"),
        ("[0.5,1]", r"[\frac12,1]"),
        (r"(-\infty,0)\cup(1,\infty)", r"(1,\infty) \cup (-\infty,0)"), (r"x\in[1,2]", "[1,2]"),
        (r"1\le x\le2", "[1,2]"),
        (r"[1,2]", r"1\le x\le2"), (r"(3,\infty)", "x>3"), ("x>3", r"(3,\infty)"), ("x>3", "3<x"),
        (r"x\geq 3", r"x \ge 3"),
        (r"\mathbb{R}\setminus\{1\}", r"(-\infty,1)\cup(1,\infty)"), (r"0 < x < 1", "(0,1)"),
        (r"\{x \mid x > 3\}", r"(3,\infty)"), (r"\left\{x \in \mathbb{R} : x > 3\right\}", "x>3"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
        (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}0.5\\1\end{pmatrix}", r"\begin{pmatrix}\frac12\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1+1\\2\end{pmatrix}", r"\begin{pmatrix}2\\2\end{pmatrix}"),
        (r"\left(\begin{matrix}1\\2\end{matrix}\right)", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\begin{pmatrix}\sqrt4&0\\0&1\end{pmatrix}", r"\begin{pmatrix}2&0\\0&1\end{pmatrix}"),
    ],
    "bases": [
        ("1010_2", "1010_{2}"), (r"1010_{\text{two}}", "1010_2"), ("(1010)_2", "1010_2"), ("x = 34_5", "34_5"),
        ("1010", "1010_2"), ("A3_{16}", "A3_{16}"), ("034_5", "34_5"), ("1A_{16}", "1A_{16}"), ("x_1^2", "x^2_1"),
    ],
    "operators and labels": [
        (r"\dbinom52", "10"), (r"\tbinom{5}2", "10"), (r"\binom5{2}", "10"), (r"\left.\frac12\right.", "0.5"),
        (r"\max\{1,2\}", "2"), (r"\min\left\{3,2\right\}", "2"), (r"\gcd(12,18)", "6"), (r"7\bmod 5", "2"),
        (r"-3 \bmod 5", "2"), (r"\text{Answer: }5", "5"), (r"\text{The answer is }5", "5"), ("Answer: 5", "5"),
        (r"\text{Answer: 5}", "5"), (r"\textbf{Final answer:} \frac12", "0.5"), (r"5\quad", "5"),
        (r"5 \quad 7", "5,7"), (r"x=3\qquad", "3"),
    ],
}  # fmt: skip

DIFFERENT: dict[str, Pairs] = {
    "integers": [
        ("41", "42"), ("-42", "42"), ("42", "-42"), ("24", "42"), ("4 2", "42"), ("42!", "42"), ("4.2", "42"),
        ("42000", "42"), ("421", "42"), ("0", "42"), (r"\infty", "42"), (r"\frac{0}{0}", "42"),
        (r"\frac{42}{0}", "42"),
        (r"10^{40}+1", "10^{40}"), ("\\sqrt{10^{40}+1}", "10^{20}"),
        ("123456789012345678901", "123456789012345678902"),
        ("there are 42 apples", "42"), (r"\text{forty-two}", "42"), ("42?", "43"), (r"\,", "42"), ("-", "42"),
        ("1 2 39", "42"), ("2.9999999", "3"),
    ],
    "separators": [
        ("1,00", "100"), ("1,2", "12"), ("1,000,00", "100000"), ("1.000.000", "1000000"), ("10,00,000", "1000000"),
        ("1,000", "1"), ("1,000", "1001"), ("1,2,3", "123"), (r"1\,0", "11"),
    ],
    "fractions and decimals": [
        ("0.50000000001", r"\frac12"), ("0.5000004", r"\frac12"), ("0.5000004", "0.5"), ("0.3333333", "0.333333"),
        ("0.7500001", r"1-\frac14"), ("3.0000001", r"\sqrt{9}"), (r"50.0000001\%", "0.5"), ("0.50000001", r"50\%"),
        ("3.1415", r"\pi"), ("0.4999999", r"\sin\frac{\pi}{6}"),
        (r"\frac{3}{4}", r"\frac{4}{3}"), ("0.33", "1/3"), ("0.3", "1/3"), ("3.14", r"\pi"), ("22/7", r"\pi"),
        ("1.5", "1.05"),
        (r"1\frac{1}{2}", "1/2"), ("-3/4", "3/4"), ("0.0000001", "0"), (r"10^{-7}", "0"), ("0.0000012", "0.0000014"),
        (r"1.2\times10^{-7}", r"1.3\times10^{-7}"), (r"1.5\times10^3", "15000"), ("1.5e3", "1.5"), ("2e3", "6"),
        (r"\sqrt{2}\cdot10^{-20}", r"\sqrt{3}\cdot10^{-20}"), ("1/0", "0"), (r"\frac{1}{2}", "12"), ("3/4/5", "3/4"),
    ],
    "percent, currency, degrees": [
        (r"50\%", "5"), (r"50\%", "0.05"), ("0.5", "50"), (r"5\%", "50"), (r"\$5", "6"), (r"\$5", "0.05"),
        ("\u20ac5", "50"),
        (r"90^\circ", "9"), (r"90^\circ", "180"), (r"9^0", "90"), (r"\sin 30^\circ", "30"),
        (r"45^\circ", r"\frac{\pi}{3}"),
        (r"\$", "5"), (r"\%", "5"),
    ],
    "units": [
        (r"12\text{ cm}", "13"), (r"12\text{ cm}", r"12\text{ m}"), ("12 cm", "12 km"),
        (r"12\text{ cm}^2", r"12\text{ cm}^3"),
        ("5 hours", "5 minutes"), ("2", "2m"), ("2t", "2"), ("5x", "5"), ("5", "5x"), ("7c", "7"), ("3d", "3"),
        ("cm", "12"),
        (r"5\text{ or more}", r"5\text{ or less}"), (r"5\text{ or more}", "5"), (r"5\text{ million}", "5"),
        ("5 dollars", "5 euros"),
        (r"n\text{ is odd}", r"n\text{ is even}"), (r"1\text{ m}", r"1\text{ mm}"), (r"3\text{ squared}", "3"),
    ],
    "choices": [
        ("A", "B"), ("(A)", "(B)"), (r"\textbf{(A)}\ 12", r"\textbf{(B)}\ 12"), (r"\textbf{(A)}\ 12", "B"),
        ("A, B", "B"),
        ("(C)+5", "5"), ("AB", "B"), ("A or B", "A"), ("13", r"\textbf{(B)}\ 12"), ("B", "12"), ("ABCD", "A"),
        ("C", r"\textbf{(B)}\ 12"),
    ],
    "words": [
        ("on", "no"), ("no", "on"), ("yes", "no"), (r"\text{True}", "False"), ("odd", "even"), ("Tuesday", "Monday"),
        ("silent", "listen"), (r"\text{not even}", "even"), ("yes and no", "yes"), ("three", "3"),
        ("infinite", "finite"),
        ("I do not know", "no"), ("no solution", "0"), ("yes", "1"), (r"\text{None}", "0"),
    ],
    "expressions": [
        ("x", "y"), ("x+1", "x+2"), ("(x-1)^2", "x^2-1"), ("2x", "x^2"), ("ab", "a+b"), (r"2^{n}", r"2^{n+1}"),
        ("-x", "x"),
        (r"\sqrt{x^2}", "-x"), (r"\sin x", r"\cos x"), (r"\frac{1}{x}", "x"), ("x_1", "x_2"), (r"2\pi", "2"),
        ("e", r"\pi"),
        (r"e^{-50}", r"e^{-60}"), (r"2+3i", "2-3i"), (r"\log x", "x"), ("x", "5"), ("5", "x"),
        (r"\sqrt{3}", r"\sqrt[3]{3}"),
    ],
    "equations": [
        ("7=5", "5"), ("5=7", "7"), ("0=5", "5"), ("1/3=0.5", "0.5"), ("x=7=5", "5"), ("5=7", "5=8"),
        ("x=5", "6"), ("x=5", "y=5"), ("y=2x+1", "y=2x+2"), ("x=2, y=3", "(3,2)"), ("x=5, y=6", "5"),
        ("x^2=-1", "x^2=-4"),
        ("x=2", "2,3"), ("y=x", "y=-x"), ("x^2+y^2=4", "x^2+y^2=2"), (r"x \ne 5", "5"), ("x>5", "5"),
        ("0=0", "x=x"), ("x=", "5"),
    ],
    "sets": [
        (r"\{1,2\}", "(1,2)"), (r"\{1,2,3\}", "(1,2,3)"), (r"\{1,2\}", r"x\in(1,2)"), (r"x=\{1,2\}", "(1,2)"),
        (r"\{1,2\}", "[1,2]"), (r"\left\{1,2\right\}", r"\left(1,2\right)"),
        (r"\{1,2\}", r"\{1,3\}"), ("1,2", "1,2,3"), ("1,2,3,4", "1,2,3"), ("1", "1,2"), (r"\emptyset", "0"),
        (r"\{0\}", r"\emptyset"),
        (r"\pm 3", "3"), ("3", r"\pm 3"), (r"1\text{ and }2", "1,3"), ("1, 2, ...", "1, 2"), (r"\{1,2\}", "3"),
        ("5, 5", "10"),
    ],
    "tuples": [
        ("(1,2)", r"\{1,2\}"), ("(3,2,1)", r"\{1,2,3\}"), ("(1,2,3)", r"\{1,2,3\}"), ("x=(1,2)", r"\{1,2\}"),
        ("(0.5000001,1)", r"(\frac12,1)"), ("(x,y)=(1,2)", r"\{1,2\}"),
        ("(2,1)", "(1,2)"), ("(1,2)", "(1,2,3)"), ("(1,3)", "(1,2)"), ("(-1,2)", "(1,2)"),
        ("(1,2),(3,4)", "(1,2),(4,3)"),
        ("1", "(1,2)"), ("(1,2)", "1"), ("(12)", "(1,2)"), ("(3,2,1)", "(1,2,3)"), ("(a,b)", "(b,a)"),
        ("1.2", "(1,2)"),
    ],
    "intervals": [
        (r"x\in(1,2)", r"\{1,2\}"), (r"x\in(1,2)", "1,2"), ("1,2", r"x\in(1,2)"), ("[0.5000001,1]", r"[\frac12,1]"),
        ("[0,1)", "[0,1]"), ("(0,1]", "[0,1)"), ("[0,2]", "[0,1]"), (r"(-\infty,3)", r"(3,\infty)"), ("x<3", "x>3"),
        (r"x\ge 3", "x>3"), (r"[0,1]\cup[2,3]", "[0,3]"), (r"\mathbb{R}", r"\mathbb{R}\setminus\{1\}"),
        (r"(3,\infty)", r"x\ge3"),
        ("[0,1]", "0"), (r"0<x<1", "0<x<2"),
    ],
    "matrices": [
        (r"\begin{pmatrix}0.5000001\\1\end{pmatrix}", r"\begin{pmatrix}\frac12\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", "1"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
    ],
    "broken": [
        ("((((5", "5"), ("5))))", "6"), (r"\frac{5}", "5"), (r"\foo{5}", "5"), (r"5 \\ 6", "5"), ("^5", "5"),
        ("5 =", "6"), ("&5", "5"), (r"\sqrt", "5"), ("???", "5"), ("5 6 7", "18"), (r"\begin{matrix}", "5"),
    ],
    "bases": [
        ("1010_2", "1010_3"), ("34_5", "34_6"), ("12_8", "12"), ("10_{16}", "10_8"), ("5^{3}_2", "125"),
        ("1010_2", "10"), ("10", "1010_2"), ("1011", "1010_2"), ("8_{10}", "10_8"), ("x=12_8", "12"),
        ("12_8+1", "13"), (r"12_{\text{nine}}", "12_8"),
    ],
    "operators and labels": [
        (r"\dbinom52", "11"), (r"\max\{1,2\}", "1"), (r"7\bmod 5", "7"), (r"7\bmod 0", "7"), (r"0.\dot{3}", "0.3"),
        (r"\text{Answer: }5", "6"), (r"5 \quad 7", "57"), (r"5\qquad 7", "57"), ("5   7", "57"),
        (r"5\quad 700", "5700"), (r"5 \quad 7", "12"), ("x", "x+1"), ("y", "x+0"),
    ],
}  # fmt: skip

RESPONSES: dict[str, list[tuple[str, str, Reason]]] = {
    "several boxes": [
        (r"First I guess \boxed{3}. But that fails, so the answer is \boxed{4}.", "4", Reason.EQUAL),
        (r"First I guess \boxed{3}. But that fails, so the answer is \boxed{4}.", "3", Reason.DIFFERENT),
        (r"\boxed{3}, no: \boxed{4}", "4", Reason.EQUAL),
        (r"\boxed{3}, no: \boxed{4}", "3,4", Reason.DIFFERENT),
        (r"\boxed{3} or \boxed{4}", "3", Reason.DIFFERENT),
        (r"\boxed{4}. Check: \fbox{4}", "4", Reason.EQUAL),
        (r"\fbox{1} then \boxed{2} then \fbox{3}", "3", Reason.EQUAL),
        (r"\boxed{\text{Step 1}} and finally \boxed{7}", "7", Reason.EQUAL),
        (r"\boxed{1}\boxed{2}", "12", Reason.DIFFERENT),
    ],
    "boxes": [
        (r"So \boxed{\frac{1}{2}}.", "1/2", Reason.EQUAL),
        (r"So $$\boxed{\frac{1}{1+\frac{1}{2}}}$$", "2/3", Reason.EQUAL),
        (r"\boxed {7}", "7", Reason.EQUAL),
        (r"\fbox{7}", "7", Reason.EQUAL),
        (r"\boxed{x=\fbox{7}}", "7", Reason.EQUAL),
        (r"\boxed{\boxed{7}}", "7", Reason.EQUAL),
        ("\\boxed{\n7\n}", "7", Reason.EQUAL),
        (r"\\boxed{7}", "7", Reason.EQUAL),
        (r"$\boxed{\{1,2\}}$", "1,2", Reason.EQUAL),
        (r"\boxed{7} is the answer, as \boxed{8 is wrong", "7", Reason.EQUAL),
        ("7", "7", Reason.NO_ANSWER),
        ("The answer is $7$.", "7", Reason.NO_ANSWER),
        (r"\boxed{7", "7", Reason.NO_ANSWER),
        (r"\boxed{}", "7", Reason.NO_ANSWER),
        (r"\boxed{7} or, better, \boxed{}", "7", Reason.NO_ANSWER),
        (r"\boxed 7", "7", Reason.NO_ANSWER),
        ("boxed{7}", "7", Reason.NO_ANSWER),
        ("", "7", Reason.NO_ANSWER),
        (r"x = -\boxed{7}", "-7", Reason.EQUAL),
        (r"x = -\boxed{7}", "7", Reason.DIFFERENT),
        (r"The answer - \boxed{7}", "7", Reason.EQUAL),
        (r"\boxed{7}", r"\boxed{7}", Reason.EQUAL),
        (r"\boxed{7}", r"$\boxed{7}$", Reason.EQUAL),
    ],
    "thinking": [
        (r"<think>\boxed{3}</think> \boxed{4}", "4", Reason.EQUAL),
        (r"<think>\boxed{4}</think> \boxed{3}", "4", Reason.DIFFERENT),
        (r"maybe \boxed{3}</think> \boxed{4}", "4", Reason.EQUAL),
        (r"<think>\boxed{4}</think> done", "4", Reason.NO_ANSWER),
        (r"<think>\boxed{4}", "4", Reason.NO_ANSWER),
        (r"\boxed{4}</think>", "4", Reason.NO_ANSWER),
        (r"<think>a</think><think>\boxed{4}</think>", "4", Reason.NO_ANSWER),
        (r"<think>a</think><think>b</think>\boxed{4}", "4", Reason.EQUAL),
        (r"<think>a</think>\boxed{4}<think>", "4", Reason.NO_ANSWER),
    ],
}


def cases() -> list[tuple[str, str, str, Reason]]:
    """All cases as (family, response, gold, reason)."""
    pairs = [
        (family, f"Thus the answer is $\\boxed{{{answer}}}$.", gold, reason)
        for table, reason in ((EQUAL, Reason.EQUAL), (DIFFERENT, Reason.DIFFERENT))
        for family, rows in table.items()
        for answer, gold in rows
    ]
    whole = [(family, *case) for family, rows in RESPONSES.items() for case in rows]
    return pairs + whole
