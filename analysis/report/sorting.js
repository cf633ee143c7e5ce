// Sorts a table by the column whose header is pressed: ascending, descending, then in the original order.
"use strict";
(() => {
  const SCALE = {
    ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400,
    B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, kiB: 2 ** 10, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30,
    "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9,
  };
  const PART = /^(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(x|%|[A-Za-z]+(?:\/s)?)?/;

  // Returns a number with its units, such as "12 min 5 s (18 %)", in the base unit, or null if the text does not begin with a number.
  function amount(text) {
    let rest = text.replace(/\s+/g, " ").trim().replace(/^(±|under|over|about|[<>≤≥~])\s*/, "");
    let total = null;
    for (let part = PART.exec(rest); part; part = PART.exec(rest)) {
      const scale = SCALE[part[2]];
      if (total !== null && scale === undefined) break;
      const taken = scale === undefined && part[2] !== "x" && part[2] !== "%" ? part[1] : part[0];
      const after = rest.slice(taken.length);
      if (!/^([\s,;(]|$)/.test(after)) return total;
      total = (total || 0) + Number(part[1]) * (scale || 1);
      rest = after.trimStart();
      if (scale === undefined) break;
    }
    return total;
  }

  const collator = new Intl.Collator("en", { numeric: true });

  function compare(a, b) {
    if (a.amount !== null && b.amount !== null) return a.amount - b.amount;
    if (a.amount !== null) return -1;
    if (b.amount !== null) return 1;
    return collator.compare(a.text, b.text);
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const written = [...body.rows];
    const headers = [...table.tHead.rows[0].cells];
    const names = headers.map((header) => header.textContent.trim());
    const picker = table.classList.contains("cards") ? pick(table, names) : null;

    function sort(column, order) {
      const sign = order === "descending" ? -1 : 1;
      const keyed = written.map((row) => {
        const text = row.cells[column] ? row.cells[column].textContent.trim() : "";
        return { row, text, amount: amount(text) };
      });
      if (order !== "none") keyed.sort((a, b) => sign * compare(a, b));
      body.append(...keyed.map((each) => each.row));
      headers.forEach((header, index) => header.setAttribute("aria-sort", index === column ? order : "none"));
      if (picker) picker.value = order === "none" ? "" : `${column} ${order}`;
    }

    headers.forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      header.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const now = header.getAttribute("aria-sort");
        sort(column, now === "none" ? "ascending" : now === "ascending" ? "descending" : "none");
      });
    });
    if (picker) {
      picker.addEventListener("change", () => {
        const [column, order] = picker.value.split(" ");
        sort(Number(column), order || "none");
      });
    }
  }

  // Rows that are shown as cards have no headers to press, so a list of sort orders is added above.
  function pick(table, names) {
    const label = document.createElement("label");
    label.className = "sort-by";
    const select = document.createElement("select");
    select.add(new Option("original order", ""));
    names.forEach((name, column) => {
      select.add(new Option(`${name}, ascending`, `${column} ascending`));
      select.add(new Option(`${name}, descending`, `${column} descending`));
    });
    label.append("Sort by ", select);
    table.before(label);
    return select;
  }

  for (const table of document.querySelectorAll("table")) {
    if (table.tHead && table.tBodies[0].rows.length > 1) sortable(table);
  }
})();
