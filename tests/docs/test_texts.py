"""A page's parts are found where a reader sees them."""

from website.texts import code_spans, fences, links, with_links

PAGE = """See [one](a.md#b), ![two](b.png) and `[code](c.md)`.

```sh
run [three](d.md)
```

````text
```sh
nested
```
````

```
plain
```
"""


def test_blocks_are_found_by_language_and_a_longer_fence_holds_shorter_ones():
    assert fences(PAGE, "sh") == ["run [three](d.md)\n"]
    assert fences(PAGE, "text") == ["```sh\nnested\n```\n"]
    assert fences(PAGE, "") == ["plain\n"]


def test_links_in_code_blocks_are_code():
    assert links(PAGE) == ["a.md#b", "b.png", "c.md"]
    assert code_spans(PAGE) == ["[code](c.md)"]


def test_replaced_links_leave_everything_else_as_it_is():
    assert with_links(PAGE, lambda link: link) == PAGE
    assert with_links(PAGE, str.upper) == PAGE.replace("a.md#b", "A.MD#B").replace("b.png", "B.PNG").replace(
        "c.md", "C.MD"
    )
