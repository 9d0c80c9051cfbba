// Tables that sort, filter and export: DataTables, as itables ships it. Without it they stay plain.
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow);
follow();
const number = (cell) => parseFloat(cell.replace(/<[^>]*>|[*,]/g, "").replace("−", "-"));
const byNumber = (cell, type) => (type === "sort" && isFinite(number(cell)) ? number(cell) : cell);
import(window.datatables).then(({ default: DataTable }) => {
  for (const table of document.querySelectorAll("table.sortable")) {
    const long = table.tBodies[0].rows.length > 10;
    new DataTable(table, {
      order: [], paging: false, info: false, searching: long, autoWidth: false,
      layout: { topStart: "buttons", topEnd: long ? "search" : null, bottomStart: null, bottomEnd: null },
      columnDefs: [{ targets: "_all", render: byNumber }],
      buttons: ["copyHtml5", "csvHtml5"],
    });
  }
  document.body.classList.add("ready");
});
