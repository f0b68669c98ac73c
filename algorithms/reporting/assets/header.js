function header(data) {
  const chosen = matchMedia('(prefers-color-scheme: dark)');
  const root = document.documentElement;
  const set = (dark) => { root.dataset.theme = dark ? 'dark' : 'light'; };
  set(chosen.matches);
  chosen.addEventListener('change', () => set(chosen.matches));
  const links = ['curves', 'evaluation', 'settings', 'trajectories'].map((id) =>
    element('a', { href: `#${id}` }, id[0].toUpperCase() + id.slice(1)));
  const theme = element('button', { type: 'button', id: 'theme', on: { click: () => set(root.dataset.theme !== 'dark') } },
    '◐');
  theme.title = 'light or dark';
  const head = document.getElementById('head');
  head.append(
    element('div', { class: 'facts' },
      element('h1', {}, data.runs.length === 1 ? data.runs[0].label : `${data.runs.length} runs`),
      facts(data.runs),
      element('p', { class: 'soft' }, `Made ${data.made}.`)),
  );
  head.after(element('nav', { class: 'top' }, element('div', { class: 'bar' }, links, theme)));
}

function facts(runs) {
  const columns = [
    ['algorithm', (run) => run.algorithm], ['model', (run) => run.model], ['data', (run) => run.data],
    ['held-out data', (run) => run.heldout], ['seed', (run) => run.seed], ['steps', steps],
    ['generated tokens', (run) => number(run.tokens)], ['time', (run) => duration(run.wall_s)],
  ];
  const head = ['run', ...columns.map(([name]) => name)];
  const rows = runs.map((run, index) => element('tr', {},
    element('th', { scope: 'row', title: run.path }, element('span', { class: 'key', style: runColor(index) }), ` ${run.label}`),
    columns.map(([, value]) => element('td', {}, String(value(run) ?? '–')))));
  return table(head, rows, 'facts-table');
}

function steps(run) {
  if (run.finished || run.steps === run.planned_steps) return number(run.steps);
  if (run.planned_steps === null) return `${number(run.steps)}, not finished`;
  return `${number(run.steps)} of ${number(run.planned_steps)}, not finished`;
}
