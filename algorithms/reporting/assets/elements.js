// Every text reaches the page as a text node: whatever a policy wrote, it stays text.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  assign(made, attributes);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  assign(made, attributes);
  made.append(...children);
  return made;
}

function assign(made, { on = {}, style = {}, ...attributes }) {
  for (const [event, handler] of Object.entries(on)) made.addEventListener(event, handler);
  for (const [property, value] of Object.entries(style)) made.style.setProperty(property, value);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value === true ? '' : value);
  }
}

function number(value, unit = '') {
  if (value === null || value === undefined) return '–';
  if (unit === 'share') return `${(100 * value).toFixed(1)} %`;
  const size = Math.abs(value);
  const text = size >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  return text.replace('-', '−');
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

function duration(seconds) {
  if (typeof seconds !== 'number') return '–';
  const minutes = Math.round(seconds / 60);
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return minutes < 120 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

function runColor(index) {
  return { '--color': `var(--run-${index % 8})` };
}

// One of several, as a row of buttons.
function choice(label, options, chosen, onChange) {
  const buttons = options.map(([value, text]) => {
    const press = () => {
      for (const other of buttons) other.setAttribute('aria-pressed', String(other === button));
      onChange(value);
    };
    const button = element('button', { type: 'button', 'aria-pressed': String(value === chosen), on: { click: press } }, text);
    return button;
  });
  return element('span', { class: 'choice', role: 'group', 'aria-label': label }, buttons);
}

const tip = {
  box: document.getElementById('tip'),
  show(event, ...content) {
    this.box.replaceChildren(...content);
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
    const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};
