"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, row = head.parentElement, body = row.closest("table").tBodies[0];
    const column = [...row.children].indexOf(head);
    const first = head.dataset.first || "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const cell of row.children) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const key = (line) => line.children[column].dataset.value ?? line.children[column].textContent;
    const sorted = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // unknown figures come last either way
      const less = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return order === "ascending" ? less : -less;
    });
    body.append(...sorted);
  });
}
