/* Excerpts of search results without LaTeX: the search reads pages before MathJax has set their formulas. */
const TEX_COMMAND = /\\(?:mathrm|mathbf|operatorname|text|left|right|begin\{\w+\}|end\{\w+\}|[,;!\\ ])/g;

document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // Only the page of results has it.
  const original = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll("div.math, .katex, .copybtn").forEach((formula) => formula.remove());
    page.querySelectorAll(".math").forEach((formula) => {
      formula.textContent = formula.textContent
        .replace(/^\\\(|\\\)$/g, "")
        .replace(TEX_COMMAND, " ")
        .replace(/\\(\w+)/g, "$1")
        .replace(/[{}$^_]/g, "")
        .trim();
    });
    return original(page.documentElement.outerHTML, anchor);
  };
});
