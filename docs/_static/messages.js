// Finds the entry for a pasted message or traceback on the page of error messages. The
// search of the site cannot: a message contains process ids and names of files.
"use strict";

(() => {
  const SHOWN = 5;
  const ENOUGH = 0.6; // of the words of a message

  const wordsOf = (text) => new Set(text.toLowerCase().match(/[a-z]{2,}/g) ?? []);

  /** Return the entries of the page: a link, and the words of each of its messages. */
  function entriesOf(page) {
    return [...page.querySelectorAll("section > section > h3")].map((head) => {
      const title = head.firstChild.textContent;
      const texts = head.parentElement.querySelector("pre")?.textContent ?? "";
      const messages = [title, ...texts.split("\n")].map(wordsOf);
      return { title, id: head.parentElement.id, messages };
    });
  }

  /** Return how much of a message was pasted, from 0 to 1; long ones before short ones. */
  function likeness(message, pasted) {
    const common = [...message].filter((word) => pasted.has(word)).length;
    const share = message.size > 1 ? common / message.size : 0;
    return share < ENOUGH ? 0 : share + common / 1000;
  }

  /** Return the entries that fit best. */
  function found(entries, text) {
    const pasted = wordsOf(text);
    return entries
      .map((one) => {
        const fits = one.messages.map((message) => likeness(message, pasted));
        return { ...one, fit: Math.max(...fits) };
      })
      .filter((one) => one.fit > 0)
      .sort((one, other) => other.fit - one.fit)
      .slice(0, SHOWN);
  }

  /** Add the field to the page, below the introduction. */
  function addFinder(page) {
    const entries = entriesOf(page);
    const label = document.createElement("label");
    label.className = "message-finder";
    label.textContent = "Paste an error message or a traceback";
    const field = document.createElement("textarea");
    field.rows = 3;
    label.append(field);
    const results = document.createElement("ol");
    results.className = "message-results";
    results.setAttribute("aria-live", "polite");
    field.addEventListener("input", () => {
      const links = found(entries, field.value).map(({ title, id }) => {
        const link = document.createElement("a");
        link.href = `#${id}`;
        link.textContent = title;
        const item = document.createElement("li");
        item.append(link);
        return item;
      });
      results.replaceChildren(...links);
    });
    page.querySelector("section > section").before(label, results);
  }

  const page = document.getElementById("errors-and-remedies");
  if (page) addFinder(page);
})();
