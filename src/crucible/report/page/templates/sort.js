// Tables whose headings are buttons: a click or the keyboard sorts the rows, and says so to a screen reader.
for (const table of document.querySelectorAll("table.sortable")) {
  const said = document.getElementById("sorted");
  table.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
    const head = button.closest("th"), column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => { const cell = row.cells[column]; return cell.dataset.value ?? cell.textContent.trim(); };
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? order : -order;
    });
    body.append(...rows);
    if (said) said.textContent = `sorted by ${button.textContent.trim()}, ${up ? "ascending" : "descending"}`;
  }));
}
