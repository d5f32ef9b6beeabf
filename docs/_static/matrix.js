// Filters for the matrix. The filter is in the address, so that it can be linked to; the
// table is whole without this script.
"use strict";

(() => {
  const form = document.querySelector("form.matrix-filter");
  const table = document.querySelector("table.clause-matrix");
  if (!form || !table) return;

  const NAMES = ["implementation", "verdict", "level", "profile", "chapter",
    "strategy", "start_method", "rows", "text"];
  const settings = table.dataset.settings.split(" ").map((one) => one.split("/"));
  const heads = [...table.tHead.rows[0].cells];
  const chapters = [...table.tBodies].map((body) => ({
    body,
    name: body.dataset.chapter,
    rows: [...body.rows].slice(1).map((row) => ({
      row,
      words: row.textContent.toLowerCase(),
    })),
  }));
  const total = chapters.reduce((sum, chapter) => sum + chapter.rows.length, 0);
  const count = form.querySelector("output");

  const filter = () =>
    Object.fromEntries(NAMES.map((name) => [name, form.elements[name].value.trim()]));

  const read = () => {
    const given = new URLSearchParams(location.search);
    for (const name of NAMES) {
      const field = form.elements[name];
      field.value = given.get(name) ?? "";
      if (field.value !== (given.get(name) ?? "")) field.value = ""; // no such option
    }
  };

  const write = (wanted) => {
    const set = Object.entries(wanted).filter(([, value]) => value);
    const query = new URLSearchParams(set).toString();
    const hash = query === location.search.slice(1) ? location.hash : "";
    history.replaceState(null, "", location.pathname + (query && `?${query}`) + hash);
  };

  // A cell with a strategy or a start method chosen: broken as before, held, or not run.
  // What is the same with all of them has no letters.
  const recorded = new Map(
    [...table.querySelectorAll("td[data-with]")].map((cell) => {
      const face = cell.querySelector("button") ?? cell;
      const [symbol, word] = [face.firstChild, face.querySelector("span")];
      const [classes, label] = [cell.className, face.ariaLabel];
      return [cell, { face, symbol, word, classes, label, texts: [symbol.data, word.textContent] }];
    }),
  );
  const HELD = { classes: "held", texts: ["✓ ", "held"] };
  const NOT_RUN = { classes: "not-run", texts: ["○ ", "not run"] };

  const shownFor = (cell, chosen) => {
    if (!chosen) return recorded.get(cell);
    const marks = chosen.map((place) => cell.dataset.with[place]);
    if (marks.includes("b")) return recorded.get(cell);
    return marks.includes("h") ? HELD : NOT_RUN;
  };

  const showSetting = (wanted) => {
    const fits = ([strategy, method]) =>
      (!wanted.strategy || strategy === wanted.strategy) &&
      (!wanted.start_method || method === wanted.start_method);
    const all = !wanted.strategy && !wanted.start_method;
    const chosen = all ? null : settings.flatMap((one, place) => (fits(one) ? [place] : []));
    table.classList.toggle("one-setting", !all); // the counts of chapters are of all
    for (const [cell, was] of recorded) {
      const shown = shownFor(cell, chosen);
      if (shown.classes === cell.className && shown.texts[1] === was.word.textContent) continue;
      cell.className = shown.classes;
      [was.symbol.data, was.word.textContent] = shown.texts;
      if (was.label) {
        was.face.ariaLabel = shown === was ? was.label : was.label.replace(/: .*/, `: ${shown.texts[1]} with this setting`);
      }
    }
  };

  // Controls, and what nobody ships, differ by design.
  const differs = (row) => {
    const seen = new Set();
    [...row.cells].forEach((cell, place) => {
      if (place === 0 || heads[place].classList.contains("apart")) return;
      for (const name of ["held", "broken"]) if (cell.classList.contains(name)) seen.add(name);
    });
    return seen.size > 1;
  };

  const hasVerdict = (row, wanted) =>
    [...row.cells].some(
      (cell, place) =>
        place > 0 &&
        cell.classList.contains(wanted.verdict) &&
        (!wanted.implementation || heads[place].dataset.implementation === wanted.implementation),
    );

  const matches = ({ row, words }, wanted) =>
    (!wanted.level || row.dataset.level === wanted.level) &&
    (!wanted.profile || row.dataset.profile === wanted.profile) &&
    (!wanted.verdict || hasVerdict(row, wanted)) &&
    (!wanted.rows || differs(row)) &&
    wanted.text.toLowerCase().split(/\s+/).every((word) => words.includes(word));

  const showColumns = (implementation) => {
    table.classList.toggle("one-column", Boolean(implementation));
    heads.forEach((head, place) => {
      const hidden = place > 0 && Boolean(implementation) && head.dataset.implementation !== implementation;
      if (head.hidden === hidden) return;
      for (const row of table.rows) row.cells[place].hidden = hidden;
    });
  };

  const apply = () => {
    const wanted = filter();
    showSetting(wanted);
    let shown = 0;
    for (const chapter of chapters) {
      const chosen = !wanted.chapter || wanted.chapter === chapter.name;
      let here = 0;
      for (const one of chapter.rows) {
        one.row.hidden = !(chosen && matches(one, wanted));
        here += one.row.hidden ? 0 : 1;
      }
      chapter.body.hidden = here === 0;
      shown += here;
    }
    showColumns(wanted.implementation);
    count.value = `${shown} of ${total} clauses`;
    write(wanted);
  };

  const fold = (body, folded) => {
    body.classList.toggle("folded", folded);
    body.querySelector("tr.chapter button").setAttribute("aria-expanded", String(!folded));
  };

  for (const { body } of chapters) {
    const title = body.querySelector("tr.chapter th > span");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = title.textContent;
    button.setAttribute("aria-expanded", "true");
    button.addEventListener("click", () => fold(body, !body.classList.contains("folded")));
    title.replaceWith(button);
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply)); // the fields are empty after it
  form.addEventListener("click", (event) => {
    const wanted = event.target.dataset.fold;
    if (wanted) for (const { body } of chapters) fold(body, wanted === "true");
  });
  window.addEventListener("popstate", () => { read(); apply(); });

  form.hidden = false;
  read();
  apply();
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
})();
