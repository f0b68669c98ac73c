function curvesSection(data) {
  const section = document.getElementById('curves');
  const longest = Math.max(...data.runs.map((run) => run.steps));
  const state = { byTokens: false, smoothing: longest > 30 ? 0.6 : 0, hidden: new Set() };
  const panels = element('div', { class: 'panels' });
  const draw = () => {
    const shown = data.panels.filter((panel) => data.curves.some((run) => run.series[panel.tag]));
    panels.replaceChildren(...shown.map((panel) => chart(panel, linesOf(data, panel, state), state)));
  };
  const slider = element('input', {
    type: 'range', id: 'smoothing', min: 0, max: 0.97, step: 0.01, value: state.smoothing,
    on: { input: (event) => { state.smoothing = Number(event.target.value); draw(); } },
  });
  const axes = choice('horizontal axis', [[false, 'by step'], [true, 'by generated tokens']], false,
    (value) => { state.byTokens = value; draw(); });
  const absent = data.panels.filter((panel) => data.curves.every((run) => !run.series[panel.tag])).map((panel) => panel.title);
  section.append(
    element('h2', {}, 'Curves'),
    element('div', { class: 'controls' }, axes, element('label', {}, 'smoothing', slider),
      data.runs.length > 1 ? legend(data, state, draw) : null),
    panels,
    absent.length ? element('p', { class: 'soft' }, `Not recorded: ${absent.join(', ')}.`) : '');
  draw();
}

function legend(data, state, draw) {
  return data.runs.map((run, index) => {
    const toggle = (event) => {
      if (event.target.checked) state.hidden.delete(index);
      else state.hidden.add(index);
      draw();
    };
    return element('label', {}, element('input', { type: 'checkbox', checked: true, on: { change: toggle } }),
      element('span', { class: 'key', style: runColor(index) }), run.label);
  });
}

function linesOf(data, panel, state) {
  return data.curves.flatMap((run, index) => {
    if (state.hidden.has(index) || !run.series[panel.tag]) return [];
    const x = state.byTokens ? run.tokens : run.steps;
    return [{ label: data.runs[index].label, index, x, steps: run.steps, y: run.series[panel.tag] }];
  });
}
