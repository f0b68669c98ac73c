const HEIGHT = 170;
const MARGIN = { left: 46, right: 12, top: 8, bottom: 22 };

// A picture of lines {label, index, x, y, steps}; gaps in y are null.
function chart(panel, lines, { smoothing, byTokens }) {
  const svg = drawing('svg', { role: 'img', 'aria-label': panel.title });
  const box = element('div', { class: 'panel', 'data-tag': panel.tag },
    element('h3', {}, panel.title, panel.unit && panel.unit !== 'share' ? element('span', {}, ` ${panel.unit}`) : null), svg);
  const curves = lines.map((line) => known(line)).filter((line) => line.x.length)
    .map((line) => ({ ...line, smooth: panel.sparse ? line.y : smoothed(line.y, smoothing) }));
  const draw = () => paint(svg, panel, curves, byTokens);
  new ResizeObserver(draw).observe(svg);
  return box;
}

function known(line) {
  const places = [...line.y.keys()].filter((place) => line.y[place] !== null);
  const pick = (values) => places.map((place) => values[place]);
  return { ...line, x: pick(line.x), y: pick(line.y), steps: pick(line.steps) };
}

// An exponential moving mean that is not drawn to zero at its start.
function smoothed(values, weight) {
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

function paint(svg, panel, curves, byTokens) {
  const width = svg.clientWidth;
  if (!width) return;
  svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren();
  if (!curves.length) {
    svg.append(drawing('text', { class: 'tick', x: width / 2, y: HEIGHT / 2, 'text-anchor': 'middle' }, 'not measured yet'));
    return;
  }
  const xs = curves.flatMap((line) => line.x);
  const ys = curves.flatMap((line) => line.y);
  const x = axis(Math.min(...xs), Math.max(...xs), MARGIN.left, width - MARGIN.right, width > 420 ? 7 : 5, true);
  const y = axis(lowest(panel, ys), Math.max(...ys), HEIGHT - MARGIN.bottom, MARGIN.top, 4, false);
  for (const tick of y.ticks) {
    svg.append(
      drawing('line', { class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: y.at(tick), y2: y.at(tick) }),
      drawing('text', { class: 'tick', x: MARGIN.left - 6, y: y.at(tick) + 3.5, 'text-anchor': 'end' }, tickText(tick, panel.unit)));
  }
  for (const tick of x.ticks) {
    svg.append(drawing('text', { class: 'tick', x: x.at(tick), y: HEIGHT - 6, 'text-anchor': 'middle' }, tickText(tick, '')));
  }
  for (const line of curves) drawLine(svg, panel, line, x, y);
  follow(svg, panel, curves, x, y, byTokens);
}

// Shares and counts begin at zero, where a small change must not look like a large one.
function lowest(panel, ys) {
  const least = Math.min(...ys);
  return panel.tag === 'reward/mean' ? least : Math.min(0, least);
}

function drawLine(svg, panel, line, x, y) {
  const path = (values) => values.map((value, place) =>
    `${place ? 'L' : 'M'}${x.at(line.x[place]).toFixed(1)},${y.at(value).toFixed(1)}`).join('');
  const style = runColor(line.index);
  if (line.smooth.some((value, place) => value !== line.y[place])) {
    svg.append(drawing('path', { class: 'curve raw', d: path(line.y), style }));
  }
  svg.append(drawing('path', { class: 'curve', d: path(line.smooth), style }));
  if (panel.sparse || line.x.length === 1) {
    svg.append(...line.x.map((place, index) =>
      drawing('circle', { class: 'dot', cx: x.at(place), cy: y.at(line.smooth[index]), r: 3, style })));
  }
}

function axis(low, high, from, to, count, whole) {
  if (high === low) {
    high += Math.abs(high) * 0.1 || 1;
    if (!whole && low > 0) low = 0;
  }
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10);
  if (whole) step = Math.max(1, Math.round(step));
  const first = whole ? low : Math.floor(low / step) * step;
  const last = whole ? high : Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let tick = Math.ceil(first / step - 1e-9); tick * step <= last + step * 1e-6; tick += 1) ticks.push(tick * step);
  return {
    ticks,
    at: (value) => from + (value - first) / (last - first) * (to - from),
    value: (place) => first + (place - from) / (to - from) * (last - first),
  };
}

function tickText(value, unit) {
  if (unit === 'share') return `${Number((100 * value).toPrecision(3))} %`;
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return size >= 1000 ? value.toLocaleString('en') : String(Number(value.toPrecision(3)));
}

// The values of all runs at the pointer.
function follow(svg, panel, curves, x, y, byTokens) {
  const marks = drawing('g');
  svg.append(marks);
  svg.onpointermove = (event) => {
    const target = x.value(event.clientX - svg.getBoundingClientRect().left);
    const found = curves.map((line) => ({ line, place: nearest(line.x, target) }));
    const middle = found.reduce((best, one) =>
      Math.abs(one.line.x[one.place] - target) < Math.abs(best.line.x[best.place] - target) ? one : best);
    const at = x.at(middle.line.x[middle.place]);
    marks.replaceChildren(
      drawing('line', { class: 'rule', x1: at, x2: at, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      ...found.map(({ line, place }) => drawing('circle', {
        class: 'dot', cx: x.at(line.x[place]), cy: y.at(line.smooth[place]), r: 3.5, style: runColor(line.index) })));
    tip.show(event, element('div', {}, panel.title), ...found.map(({ line, place }) => element('div', {},
      element('span', { class: 'key', style: runColor(line.index) }),
      `${line.label}, step ${line.steps[place]}${byTokens ? `, ${tickText(line.x[place], '')} tokens` : ''}`,
      element('b', {}, valueText(panel, line, place)))));
  };
  svg.onpointerleave = () => {
    marks.replaceChildren();
    tip.hide();
  };
}

function valueText(panel, line, place) {
  const value = number(line.y[place], panel.unit);
  const mean = number(line.smooth[place], panel.unit);
  return mean === value ? value : `${value} (${mean})`;
}

function nearest(values, target) {
  let best = 0;
  values.forEach((value, place) => {
    if (Math.abs(value - target) < Math.abs(values[best] - target)) best = place;
  });
  return best;
}
