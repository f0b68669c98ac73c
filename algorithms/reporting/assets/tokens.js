// What colors mean: of every way the tint, and how strong it is for a token, from 0 to 1.
const COLORS = {
  entropy: 'entropy', advantage: 'advantage', surprisal: '−log-prob', nothing: 'nothing',
};
const STRONGEST = 75;

// The tokens of one turn, [from, to) of the row's.
function tokenSpans(all, row, from, to, color) {
  const spans = [];
  for (let place = from; place < to; place += 1) {
    const [tint, strength] = tintOf(all, row, place, color);
    spans.push(element('span', {
      class: `token ${tint}`, 'data-place': place, style: { '--strength': `${(STRONGEST * strength).toFixed(0)}%` },
    }, all.pieces[row.pieces[place]]));
  }
  return spans;
}

function tintOf(all, row, place, color) {
  if (color === 'nothing') return ['none', 0];
  if (color === 'advantage') {
    const largest = Math.max(...all.groups.get(groupKey(row)).map(largestAdvantage), 1e-9);
    const value = advantageOf(row, place);
    return [value < 0 ? 'down' : 'up', Math.abs(value ?? 0) / largest];
  }
  const [values, scale] = color === 'entropy' && row.entropies
    ? [row.entropies, all.scale.entropy] : [row.logprobs, all.scale.surprisal];
  return ['heat', Math.min(1, Math.abs(values[place] ?? 0) / 1000 / scale)];
}

// A token's own advantage where they differ, else the response's.
function advantageOf(row, place) {
  const own = row.advantages?.[place];
  return typeof own === 'number' ? own / 1000 : row.advantage;
}

function largestAdvantage(row) {
  const all = row.advantages ? row.advantages.map((value) => (value ?? 0) / 1000) : [row.advantage ?? 0];
  return all.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

function describeToken(all, row, place) {
  const part = (values) => values?.[place] === null || values?.[place] === undefined ? null : values[place] / 1000;
  const logprob = part(row.logprobs);
  const line = (name, value) => element('div', {}, name, element('b', {}, value));
  return [
    line(`token ${place + 1} of ${row.pieces.length}`, JSON.stringify(all.pieces[row.pieces[place]])),
    line('log-prob', logprob === null ? 'not a number' : `${fixed(logprob)}  (${(100 * Math.exp(logprob)).toPrecision(3)} %)`),
    line('entropy', row.entropies ? `${fixed(part(row.entropies))} nats` : 'not computed'),
    line('advantage', signed(advantageOf(row, place))),
  ];
}

function fixed(value) {
  return value === null ? '–' : value.toFixed(3).replace('-', '−');
}

function colorKey(all, rows, color) {
  if (color === 'nothing') return [];
  if (color === 'advantage') {
    const whole = rows.some((row) => row.advantages) ? '' : '; one for a whole response';
    return ['negative', element('span', { class: 'scale both' }), `positive${whole}`];
  }
  const key = (values, scale, unit) => ['0 ', element('span', { class: 'scale heat' }), ` ${number(scale)} ${unit}`];
  if (color === 'surprisal') return key(null, all.scale.surprisal, 'nats');
  const without = rows.filter((row) => row.pieces && !row.entropies).length;
  const note = without ? `; ${without} of ${rows.length} have no entropies and show −log-prob` : '';
  return [...key(null, all.scale.entropy, 'nats'), note];
}
