const PAGE = 200;

function trajectoriesSection(data) {
  const all = data.trajectories;
  all.groups = Map.groupBy(all.rows, groupKey);
  const section = document.getElementById('trajectories');
  const state = { run: '', step: '', context: '', outcome: '', uid: '', shown: PAGE, chosen: null, color: 'entropy' };
  const list = element('div');
  const detail = element('div', { id: 'group' });
  const show = () => {
    const rows = all.rows.filter((row) => matches(row, state));
    list.replaceChildren(...listView(data, rows, state, open, show));
    detail.replaceChildren(...(state.chosen ? detailView(data, rows, state, open, recolor) : []));
  };
  const open = (row, scroll = false) => {
    state.chosen = row;
    history.replaceState(null, '', `#group=${groupKey(row)}`);
    show();
    if (scroll) detail.scrollIntoView({ block: 'start' });
  };
  const recolor = (color) => { state.color = color; show(); };
  const filter = (change) => { Object.assign(state, change, { shown: PAGE }); show(); };
  section.append(element('h2', {}, 'Trajectories'), filters(data, filter),
    ...all.left_out.map((note) => element('p', { class: 'soft left-out' }, note)), list, detail);
  const linked = all.groups.get(location.hash.replace('#group=', ''));
  if (linked) open(linked[0], true);
  else show();
}

function matches(row, state) {
  if (state.run !== '' && row.run !== Number(state.run)) return false;
  if (state.step !== '' && row.step !== Number(state.step)) return false;
  if (state.context === 'replayed' ? !row.replayed : state.context && (row.replayed || row.context !== state.context)) return false;
  if (state.outcome === 'truncated' ? !row.truncated : state.outcome && row.outcome !== state.outcome) return false;
  return !state.uid || row.uid.includes(state.uid);
}

function filters(data, filter) {
  const rows = data.trajectories.rows;
  const unique = (name) => [...new Set(rows.map((row) => row[name]))];
  const steps = unique('step').sort((one, other) => one - other);
  const select = (name, label, options) => element('label', {}, label,
    element('select', { id: `filter-${name}`, on: { change: (event) => filter({ [name]: event.target.value }) } },
      element('option', { value: '' }, 'all'), options.map(([value, text]) => element('option', { value }, text))));
  const same = (values) => values.map((value) => [value, String(value)]);
  const uids = element('datalist', { id: 'uids' }, unique('uid').sort().slice(0, 1000).map((value) => element('option', { value })));
  const uid = element('input', { type: 'text', id: 'filter-uid', list: 'uids', size: 18, placeholder: 'part of it',
    on: { input: (event) => filter({ uid: event.target.value }) } });
  return element('div', { class: 'controls' },
    data.runs.length > 1 ? select('run', 'run', data.runs.map((run, index) => [index, run.label])) : null,
    select('step', 'step', same(steps)),
    select('context', 'context', same([...unique('context'), 'replayed'])),
    select('outcome', 'verdict', same(['correct', 'incorrect', 'truncated', 'error'])),
    element('label', {}, 'uid', uid, uids));
}

function listView(data, rows, state, open, show) {
  const several = data.runs.length > 1;
  const head = [several ? 'run' : null, 'step', 'query', 'context', 'verdict', 'reward', 'advantage', 'tokens', 'response']
    .filter(Boolean);
  const lines = rows.slice(0, state.shown).map((row) => listRow(data, row, state, open));
  const more = () => { state.shown += PAGE; show(); };
  const count = `${number(rows.length)} of ${number(data.trajectories.rows.length)} trajectories`;
  const box = table(head, lines, 'list');
  box.classList.add('list');
  const wide = { context: 'wide', response: 'text' };
  for (const cell of box.querySelectorAll('thead th')) if (wide[cell.textContent]) cell.className = wide[cell.textContent];
  return [
    element('p', { class: 'soft', id: 'count' }, rows.length ? `${count}; one opens its group` : `${count}: no such trajectory`),
    ...(rows.length ? [box] : []),
    ...(rows.length > state.shown ? [element('button', { type: 'button', id: 'more', on: { click: more } }, 'more')] : []),
  ];
}

function listRow(data, row, state, open) {
  const cells = [
    row.step, row.uid,
    element('span', { class: `badge ${row.replayed ? 'replayed' : row.context}` }, row.replayed ? 'replayed' : row.context),
    element('span', { class: `badge ${row.outcome}` }, row.outcome),
    number(row.reward), signed(row.advantage), number(row.tokens),
  ];
  const text = data.trajectories.texts[row.response].slice(0, 160);
  const run = element('td', {}, element('span', { class: 'key', style: runColor(row.run) }));
  const press = (event) => { if (event.key === 'Enter') open(row); };
  return element('tr', { tabindex: 0, 'aria-selected': String(row === state.chosen), on: { click: () => open(row), keydown: press } },
    data.runs.length > 1 ? run : null,
    cells.map((cell, place) => element('td', { class: place === 2 ? 'wide' : null }, cell instanceof Node ? cell : String(cell))),
    element('td', { class: 'text' }, text));
}

function detailView(data, rows, state, open, recolor) {
  const key = groupKey(state.chosen);
  const keys = [...new Set(rows.map(groupKey))];
  const place = keys.indexOf(key);
  const step = (by, text) => {
    const target = keys[place + by];
    const go = () => open(rows.find((row) => groupKey(row) === target));
    return element('button', { type: 'button', disabled: target === undefined, on: { click: go } }, text);
  };
  return [
    element('div', { class: 'controls' }, step(-1, '← group before'), step(1, 'next group →')),
    groupView(data, data.trajectories.groups.get(key), state.chosen, state.color, recolor),
  ];
}
