function groupKey(row) {
  return `${row.run}.${row.step}.${row.group}`;
}

// All samples of one prompt side by side.
function groupView(data, rows, chosen, color, onColor) {
  const all = data.trajectories;
  const fresh = rows.filter((row) => !row.replayed);
  const shared = sharedTurns(fresh.length ? fresh : rows);
  const first = rows[0];
  const where = data.runs.length > 1 ? `${data.runs[first.run].label}, ` : '';
  const cards = rows.map((row) => card(all, row, row.replayed ? 0 : shared, color, row === chosen));
  const box = element('div', { class: 'group', 'data-group': groupKey(first) },
    element('h3', {}, `${where}step ${first.step}, group ${first.group}: ${first.uid} `,
      element('span', { class: `badge ${first.context}` }, first.context),
      first.baseline ? element('span', { class: 'soft' }, ` baseline ${first.baseline}`) : null),
    (fresh[0] ?? first).turns.slice(0, shared).map(([role, text]) => turn(role, words(all.texts[text]))),
    first.answer === undefined ? null : turn('reference answer', words(all.texts[first.answer])),
    element('div', { class: 'controls' }, 'tokens colored by',
      choice('color of tokens', Object.entries(COLORS), color, onColor),
      element('span', { class: 'soft', id: 'color-key' }, colorKey(all, rows, color))),
    element('div', { class: 'cards', tabindex: 0 }, cards));
  box.addEventListener('pointermove', (event) => hover(all, rows, event));
  box.addEventListener('click', (event) => hover(all, rows, event));
  box.addEventListener('pointerleave', () => tip.hide());
  return box;
}

function hover(all, rows, event) {
  const token = event.target.closest?.('.token');
  if (!token) {
    tip.hide();
    return;
  }
  const row = rows[Number(token.closest('.card').dataset.index)];
  tip.show(event, ...describeToken(all, row, Number(token.dataset.place)));
}

// How many turns at the beginning are the same in all samples and not the policy's own of this episode.
function sharedTurns(rows) {
  const [first] = rows;
  let count = 0;
  while (rows.every((row) => count < contextTurns(row) && String(row.turns[count]) === String(first.turns[count]))) count += 1;
  return count;
}

// Turns before the first that the policy wrote in this episode.
function contextTurns(row) {
  let own = (row.turn_lengths?.length ?? 1) - 1;
  let count = row.turns.length;
  for (let place = row.turns.length - 1; place >= 0 && own > 0; place -= 1) {
    if (row.turns[place][0] === 'assistant') {
      own -= 1;
      count = place;
    }
  }
  return count;
}

function card(all, row, shared, color, chosen) {
  const rows = all.groups.get(groupKey(row));
  const before = contextTurns(row);
  const context = row.turns.slice(shared, before).map(([role, text]) => turn(role, words(all.texts[text])));
  return element('article', { class: `card ${row.outcome}${chosen ? ' chosen' : ''}`, 'data-index': rows.indexOf(row) },
    badges(row),
    numbers(row),
    context.length ? element('details', {}, element('summary', {}, row.replayed ? 'the prompt it was stored with' : 'its own prompt'),
      context) : null,
    ownTurns(all, row, before, color));
}

function badges(row) {
  const texts = [[row.outcome, row.outcome]];
  if (row.outcome !== 'truncated' && row.truncated) texts.push(['truncated', 'truncated']);
  if (row.replayed) texts.push(['replayed', 'replayed']);
  return element('div', {}, texts.flatMap(([name, text]) => [element('span', { class: `badge ${name}` }, text), ' ']),
    row.verdict ? element('span', { class: 'soft' }, row.verdict) : null);
}

function numbers(row) {
  const entries = [['reward', number(row.outcome_reward ?? row.reward)]];
  if (row.ranking_reward !== null) entries.push(['ranking reward', number(row.ranking_reward)]);
  entries.push(['advantage', signed(row.advantage)], ['tokens', number(row.tokens)]);
  return element('dl', { class: 'numbers' }, entries.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
}

// What the policy wrote, token by token, and what it was answered in between.
function ownTurns(all, row, before, color) {
  const turns = [...row.turns.slice(before), ['assistant', row.response]];
  let place = 0;
  let own = 0;
  return turns.flatMap(([role, text], index) => {
    if (role !== 'assistant') return [turn(role, words(all.texts[text]))];
    let content = words(all.texts[text]);
    if (row.pieces) {
      const to = place + (row.turn_lengths[own] ?? row.pieces.length - place);
      content = element('div', { class: 'words' }, tokenSpans(all, row, place, to, color));
      place = to;
    }
    const shown = [turn(role, content, true), judgment(all, row, own, turns[index + 1])];
    own += 1;
    return shown;
  });
}

// What the environment made of a turn: its reward, and its feedback where the next turn does not say the same.
function judgment(all, row, own, next) {
  const reward = row.turn_rewards?.[own];
  if (reward === undefined) return null;
  const feedback = row.turn_feedback[own];
  const answered = feedback !== null && feedback !== next?.[1];
  return element('div', { class: 'turn judged' }, element('span', {}, `reward ${number(reward)}`),
    answered ? words(all.texts[feedback]) : null);
}

function turn(role, content, own = false) {
  const names = { assistant: own ? 'policy' : 'quoted attempt' };
  return element('div', { class: `turn${own ? ' own' : ''}` }, element('span', {}, names[role] ?? role), content);
}

function words(text) {
  return text ? element('div', { class: 'words' }, text) : element('div', { class: 'words empty' }, 'empty');
}
