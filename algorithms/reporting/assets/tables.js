function table(head, rows, id) {
  return element('div', { class: 'scroll', id },
    element('table', {},
      element('thead', {}, element('tr', {}, head.map((name) => element('th', { scope: 'col' }, name)))),
      element('tbody', {}, rows)));
}

function evaluations(data) {
  const section = document.getElementById('evaluation');
  section.append(element('h2', {}, 'Evaluation'));
  if (!data.tables.length) section.append(element('p', { class: 'soft' }, 'Nothing has been evaluated yet.'));
  for (const one of data.tables) {
    const rows = one.rows.map((cells) => element('tr', {}, cells.map((cell, column) =>
      column < one.labels ? element('th', { scope: 'row' }, cell) : element('td', {}, one.prose ? cell : withInterval(cell)))));
    const cells = table(one.head, rows);
    if (one.prose) cells.classList.add('prose');
    section.append(element('h3', {}, one.title), cells);
    if (one.note) section.append(element('p', { class: 'soft' }, one.note));
  }
}

function withInterval(cell) {
  const [value, interval] = cell.split(' [');
  return interval ? [value, element('span', { class: 'interval' }, ` [${interval}`)] : [value];
}

function settings(data) {
  const section = document.getElementById('settings');
  section.append(element('h2', {}, 'Settings'));
  const labels = data.runs.map((run) => run.label);
  const rowsOf = (names) => names.map((name) => element('tr', {},
    element('th', { scope: 'row' }, name),
    data.runs.map((run) => element('td', {}, run.settings[name] ?? '–'))));
  if (data.runs.length > 1) {
    section.append(data.differing.length
      ? table(['setting that differs', ...labels], rowsOf(data.differing), 'differing')
      : element('p', { class: 'soft', id: 'differing' }, 'All runs have the same settings.'));
  }
  const all = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  const every = table(['setting', ...labels], rowsOf(all));
  every.classList.add('wraps');
  section.append(element('details', {}, element('summary', {}, `All ${all.length} settings`), every));
}
