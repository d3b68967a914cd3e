// From disk no page can be read for the search's summaries; asking would only log errors.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Sphinx finds the pages that have every word, and ranks a page by its best word. People ask whole
// questions: find the pages that have the most of the words, and rank them by all of these.
window.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // only the page of the search has it
  const having = Search.performTermsSearch;
  Search.performTermsSearch = (words, without) => {
    const found = new Map(); // by page: how many of the words it has, and its result
    for (const word of words)
      for (const result of having(new Set([word]), without)) {
        const [count, before] = found.get(result[0]) ?? [0, null];
        if (before) result[4] += before[4]; // the score
        found.set(result[0], [count + 1, result]);
      }
    const pages = [...found.values()], most = Math.max(...pages.map(([count]) => count));
    return pages.filter(([count]) => count === most).map(([, result]) => result);
  };
  // A page that answers what is asked comes first, whatever words it has for it. Sphinx shows the
  // last result first.
  const searched = Search._performSearch;
  Search._performSearch = (query, ...rest) => {
    const results = searched(query, ...rest), { docnames, titles, filenames } = Search._index;
    const wordsOf = (text) => text.toLowerCase().match(/[a-z0-9]+/g) ?? [], asked = wordsOf(query);
    const length = (page) => [...new Set((ASKED[page] ?? "").split(", ").map(wordsOf)
      .filter((phrase) => phrase.every((part) => asked.some((word) => word.startsWith(part))))
      .flat())].join("").length;
    const first = docnames.filter(length).sort((a, b) => length(a) - length(b) || (a < b ? 1 : -1));
    // So does the reference of a name that is written as in code, fit.explain or fit.explain(model).
    const name = query.trim().replace(/\(.*/, ""), wanted = name.toLowerCase();
    const named = !/\w\.\w/.test(name) ? [] : Search.performObjectSearch(wanted, new Set([wanted]))
      .filter(([, full]) => `.${full}`.endsWith(`.${name}`));
    const places = named.map(([page, , anchor]) => page + anchor);
    const others = results.filter(([page, , anchor]) =>
      !first.includes(page) && !places.includes(page + anchor));
    return [...others, ...first.map((page) => {
      const i = docnames.indexOf(page);
      return [page, titles[i], "", null, 100, filenames[i], "title"];
    }), ...named];
  };
}, true); // before Sphinx's own, which searches at once
