/* Lists the published versions. Each lies in a folder beside the others, and
   `versions.json` above them names them: ci/publish_site.py writes it. */
(async () => {
  const box = document.querySelector("details.versions");
  const home = document.documentElement.dataset.content_root;
  const root = new URL(`${home}../`, location.href);
  const answer = await fetch(new URL("versions.json", root));
  const here = new URL(home, location.href).href;
  for (const name of await answer.json()) {
    const link = document.createElement("a");
    link.href = new URL(`${name}/`, root);
    link.textContent = name;
    if (link.href === here) link.setAttribute("aria-current", "true");
    const item = document.createElement("li");
    item.append(link);
    box.querySelector("ul").append(item);
  }
  box.hidden = false;
})();
