"""Check a built site: links inside it lead somewhere, and no page loads anything from elsewhere.

    python ci/site_links.py build/site

Links to other sites are looked at and not followed: this needs no network.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SCHEMES = {"http", "https"}
# Attributes that have a browser fetch something; of <link> and <a> it depends on what they are.
FETCHED = {"src", "srcset", "poster", "data"}
FETCHING_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "manifest",
    "prefetch",
    "preconnect",
    "dns-prefetch",
}


class Read(HTMLParser):
    """Contents of a page: places that links may lead to, links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        self.loads += [value for name, value in given.items() if name in FETCHED]
        if "href" in given:
            fetched = tag == "link" and FETCHING_LINKS.intersection(given.get("rel", "").split())
            (self.loads if fetched else self.links).append(given["href"])


def problems(site: Path) -> list[str]:
    """Return the problems, a sentence each."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    sentences = [] if pages else [f"{site}: there is no page in it"]
    for path, page in pages.items():
        where = path.relative_to(site)
        sentences += [f"{where}: loads {url} from elsewhere" for url in page.loads if _outside(url)]
        inside = [url for url in (*page.links, *page.loads) if not _outside(url)]
        sentences += [f"{where}: {reason}" for url in inside if (reason := _wrong(url, path, site, pages))]
        sentences += [
            f"{where}: {url} is no address" for url in page.links if _outside(url) and not _sound(url)
        ]
    return sentences


def _read(path: Path) -> Read:
    page = Read()
    page.feed(path.read_text())
    return page


def _outside(url: str) -> bool:
    return bool(urlsplit(url).netloc) or urlsplit(url).scheme not in ("", "data")


def _sound(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in SCHEMES and "." in parts.netloc and not set(url) & set(' "<>')


def _wrong(url: str, path: Path, site: Path, pages: dict[Path, Read]) -> str | None:
    """Return the problem of a link inside the site; None if there is none."""
    parts = urlsplit(url)
    if parts.scheme == "data":
        return None
    named = unquote(parts.path)
    target = path if not named else site / named.lstrip("/") if named.startswith("/") else path.parent / named
    target = target.resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site.resolve()):
        return f"{url} leads nowhere"
    page = pages.get(target) or pages.get(site / target.relative_to(site.resolve()))
    if parts.fragment and page and unquote(parts.fragment) not in page.anchors:
        return f"{url}: there is no such place on that page"
    return None


def main(arguments: list[str]) -> int:
    sentences = problems(Path(arguments[0]))
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
