// Draws one dashboard from `asked.json` (tests/dashboards/pictures/answers.py) with Grafana's libraries.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';
import {
  FieldType, Registry, applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, getDisplayValueAlignmentFactors,
  getFieldDisplayName, getFieldDisplayValues, identityOverrideProcessor, locationUtil,
  standardEditorsRegistry, standardTransformers, standardTransformersRegistry, ThemeContext,
  thresholdsOverrideProcessor, toDataFrame, transformDataFrame, valueMappingsOverrideProcessor,
} from '@grafana/data';
import {
  BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries, VizLegend, VizRepeater,
} from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

let board, from, to, variables, answers, annotations, theme, timeRange, root;
const COLUMN = (window.innerWidth - 16) / 24, CELL = 30, GAP = 8;

standardTransformersRegistry.setInit(() =>
  [...new Map(Object.values(standardTransformers).map((made) => [made.id, made])).values()].map((made) => ({
    id: made.id, name: made.name, transformation: () => Promise.resolve(made), editor: () => null, aliasIds: [], description: '',
  })));
standardEditorsRegistry.setInit(() => []);
locationUtil.initialize({
  config: { appSubUrl: '' }, getVariablesUrlParams: () => ({}), getTimeRangeForUrl: () => ({ from: 'a', to: 'b' }),
});

const PROCESSORS = { thresholds: thresholdsOverrideProcessor, mappings: valueMappingsOverrideProcessor };
const property = (id, custom) => ({
  id: custom ? `custom.${id}` : id, path: id, name: id, isCustom: Boolean(custom), editor: () => null,
  override: () => null, shouldApply: () => true,
  process: (value, context) => (PROCESSORS[id] && !custom ? PROCESSORS[id](value, context, {}) : identityOverrideProcessor(value)),
});
const properties = new Registry(() => [
  ...['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'noValue', 'links', 'mappings', 'thresholds'].map((id) => property(id)),
  ...['drawStyle', 'lineInterpolation', 'lineWidth', 'fillOpacity', 'gradientMode', 'barAlignment', 'stacking', 'showPoints',
    'pointSize', 'spanNulls', 'axisPlacement', 'axisLabel', 'axisSoftMax', 'axisSoftMin', 'hideFrom', 'lineStyle', 'align',
    'width', 'minWidth', 'cellOptions', 'inspect', 'filterable', 'scaleDistribution'].map((id) => property(id, true)),
]);
const CUSTOM = {
  timeseries: {
    drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', barAlignment: 0,
    barWidthFactor: 0.6, barMaxWidth: 200, stacking: { mode: 'none', group: 'A' }, showPoints: 'auto', pointSize: 5,
    spanNulls: false, insertNulls: false, axisPlacement: 'auto', axisLabel: '', axisColorMode: 'text', axisBorderShow: false,
    axisCenteredZero: false, scaleDistribution: { type: 'linear' }, hideFrom: { tooltip: false, viz: false, legend: false },
    thresholdsStyle: { mode: 'off' },
  },
  table: { align: 'auto', cellOptions: { type: 'auto' }, inspect: false, filterable: false },
};
const COLOURS = { timeseries: { mode: 'palette-classic' }, heatmap: { mode: 'palette-classic' } };

// -- from answers to frames --------------------------------------------------------------------------

const number = (text) => (text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

function named(answer, labels) {
  if (answer.legend !== '__auto') {
    return answer.legend.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? '');
  }
  const rest = Object.entries(labels).filter(([name]) => name !== '__name__');
  const single = rest.length === 1 && answer.rows.length > 1;
  return single ? rest[0][1] : `${labels.__name__ ?? ''}{${rest.map(([name, text]) => `${name}="${text}"`).join(', ')}}`;
}

function framesOf(answer, several) {
  if (answer.format === 'table') {
    const labels = [...new Set(answer.rows.flatMap((row) => Object.keys(row.labels)))].sort();
    const fields = [
      { name: 'Time', type: FieldType.time, config: {}, values: answer.rows.map((row) => row.points[0][0] * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, config: {}, values: answer.rows.map((row) => row.labels[label] ?? '') })),
      { name: several ? `Value #${answer.refId}` : 'Value', type: FieldType.number, config: {}, values: answer.rows.map((row) => number(row.points[0][1])) },
    ];
    return [{ refId: answer.refId, fields: answer.rows.length ? fields : [] }];
  }
  return answer.rows.map(({ labels, points }) => ({
    refId: answer.refId, name: named(answer, labels),
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: answer.step * 1000 }, values: points.map(([at]) => at * 1000) },
      { name: 'Value', type: FieldType.number, labels, config: { displayNameFromDS: named(answer, labels) }, values: points.map(([, text]) => number(text)) },
    ],
  }));
}

function filledIn(text, scoped) {
  const context = scoped?.__dataContext?.value;
  return String(text).replace(/\$\{([^}]+)\}/g, (whole, name) => {
    if (name.startsWith('__field.labels.')) return context?.field?.labels?.[name.slice(15)] ?? '';
    if (name === '__value.text') return context?.field?.values?.[context.rowIndex] ?? '';
    const column = /^__data\.fields\["(.+)"\]$/.exec(name);
    if (column) {
      const field = context?.frame?.fields.find((each) => [each.name, getFieldDisplayName(each, context.frame)].includes(column[1]));
      return field ? field.values[context.rowIndex] : whole;
    }
    if (name === '__url_time_range') return `from=${from}000&to=${to}000`;
    const query = /^(\w+):queryparam$/.exec(name);
    if (query) return `var-${query[1]}=${variables[query[1]]?.shown}`;
    return variables[name]?.shown ?? whole;
  });
}

async function prepared(panel) {
  const made = answers[panel.id];
  let data = made.flatMap((answer) => framesOf(answer, made.length > 1)).map((frame) => toDataFrame(frame));
  data = await lastValueFrom(transformDataFrame(panel.transformations ?? [], data, { interpolate: (text) => text }));
  const fieldConfig = structuredClone(panel.fieldConfig);
  const { defaults } = fieldConfig;
  defaults.custom = { ...CUSTOM[panel.type], ...defaults.custom };
  defaults.color ??= COLOURS[panel.type] ?? { mode: 'thresholds' };
  for (const step of defaults.thresholds?.steps ?? []) step.value ??= -Infinity;
  data = applyFieldOverrides({ data, fieldConfig, replaceVariables: filledIn, theme, timeZone: 'utc', fieldConfigRegistry: properties });
  cacheFieldDisplayNames(data);
  return { panel, data, fieldConfig, empty: data.every((frame) => frame.length === 0) };
}

// -- panels that Grafana's libraries draw ------------------------------------------------------------

const values = ({ panel, data, fieldConfig }) => getFieldDisplayValues({
  fieldConfig, data, theme, timeZone: 'utc', replaceVariables: filledIn, reduceOptions: panel.options.reduceOptions,
});

function Stat(props) {
  const { options } = props.panel;
  return <VizRepeater {...props.size} source={props} itemSpacing={3} orientation={options.orientation ?? 'auto'} renderCounter={1}
    getValues={() => values(props)} getAlignmentFactors={getDisplayValueAlignmentFactors}
    renderValue={({ value, width, height, alignmentFactors, count }) =>
      <BigValue value={value.display} theme={theme} width={width} height={height} count={count} alignmentFactors={alignmentFactors}
        colorMode={options.colorMode} graphMode={options.graphMode} justifyMode={options.justifyMode} textMode={options.textMode}
        wideLayout={options.wideLayout} text={options.text} hasLinks={false} />} />;
}

function Bars(props) {
  const { options } = props.panel;
  return <VizRepeater {...props.size} source={props} itemSpacing={8} orientation="horizontal" renderCounter={1} minVizHeight={16} minVizWidth={8}
    getValues={() => values(props)} getAlignmentFactors={getDisplayValueAlignmentFactors}
    renderValue={({ value, width, height, alignmentFactors, orientation }) =>
      <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} theme={theme}
        width={width} height={height} orientation={orientation} alignmentFactors={alignmentFactors} itemSpacing={8} lcdCellWidth={12}
        displayMode={options.displayMode} showUnfilled={options.showUnfilled ?? true} valueDisplayMode={options.valueMode}
        namePlacement={options.namePlacement} />} />;
}

function Curves({ panel, data, size }) {
  const legend = { displayMode: 'list', placement: 'bottom', calcs: [], showLegend: true, ...panel.options.legend };
  return <TimeSeries {...size} frames={data} structureRev={1} timeRange={timeRange} timeZone="utc" options={panel.options} legend={legend}>
    {(config) => {
      if (!config.marked) config.addHook('draw', drawAnnotations);
      config.marked = true;
    }}
  </TimeSeries>;
}

function drawAnnotations(plot) {
  const { ctx, bbox } = plot;
  for (const mark of annotations) {
    const [begin, end] = [mark.from, mark.to].map((at) => Math.min(Math.max(plot.valToPos(at * 1000, 'x', true), bbox.left), bbox.left + bbox.width));
    ctx.fillStyle = ctx.strokeStyle = theme.visualization.getColorByName(mark.colour);
    ctx.globalAlpha = 0.15;
    ctx.fillRect(begin, bbox.top, end - begin, bbox.height);
    ctx.globalAlpha = 1;
    ctx.setLineDash([4, 4]);
    ctx.strokeRect(begin, bbox.top, Math.max(end - begin, 0.1), bbox.height);
    ctx.setLineDash([]);
  }
}

function Rows({ panel, data, fieldConfig, size }) {
  return <TableNG {...size} data={data[0]} fieldConfig={fieldConfig} timeRange={timeRange} sortBy={panel.options.sortBy} resizable
    cellHeight={panel.options.cellHeight} enableVirtualization={false} structureRev={1} />;
}

// -- panels that are not in the libraries ------------------------------------------------------------

const LEFT = 150, FOOT = 20;
const x = (at, width) => LEFT + ((at / 1000 - from) / (to - from)) * (width - LEFT - 8);
const numbers = (data) => data.flatMap((frame) =>
  frame.fields.filter(({ type }) => type === FieldType.number).map((field) => ({ field, times: frame.fields[0].values, name: getFieldDisplayName(field, frame, data) })));

function Times({ size }) {
  return [0, 0.25, 0.5, 0.75, 1].map((share) =>
    <text key={share} x={x((from + share * (to - from)) * 1000, size.width)} y={size.height - 4} fontSize={11} fill={theme.colors.text.secondary}
      textAnchor={share ? (share === 1 ? 'end' : 'middle') : 'start'}>{new Date((from + share * (to - from)) * 1000).toISOString().slice(11, 16)}</text>);
}

function Label({ row, y, high }) {
  return high < 7 ? null : <text x={LEFT - 8} y={y + high / 2 + 4} textAnchor="end" fontSize={Math.min(12, high)} fill={theme.colors.text.primary}>{row.name}</text>;
}

function Bands({ panel, data, size }) {
  const rows = numbers(data).slice(0, panel.options.perPage ?? 20), seen = new Map();
  const high = (size.height - FOOT - 26) / rows.length;
  const bands = rows.map((row, index) => <g key={index}>
    <Label row={row} y={index * high} high={high} />
    {row.times.map((at, nth) => {
      const shown = row.field.display(row.field.values[nth]), step = row.times[1] - row.times[0] || 5000;
      const next = row.times[nth + 1] ?? at + step, end = next - at > 2 * row.field.config.interval ? at + step : next;
      seen.set(shown.text, shown.color);
      return <rect key={nth} x={x(at, size.width)} width={Math.max(x(end, size.width) - x(at, size.width) + 0.5, 0)} y={index * high + high * 0.1}
        height={high * 0.8} fill={shown.color} fillOpacity={0.8} />;
    })}
  </g>);
  const items = [...seen].map(([label, color]) => ({ label, color, yAxis: 1 }));
  return <div>
    <svg width={size.width} height={size.height - 26} fontFamily={theme.typography.fontFamily}>{bands}<Times size={{ ...size, height: size.height - 26 }} /></svg>
    <VizLegend items={items} placement="bottom" displayMode="list" />
  </div>;
}

const TURBO = ['#30123b', '#4454c4', '#448ffe', '#1fc8de', '#29efa2', '#7dff56', '#c1f334', '#f1ca3a', '#fe922a', '#ea4f0d', '#be2102', '#7a0403'];

function shade(options, share) {
  const inside = Math.min(Math.max(share, 0), 1);
  if (options.mode === 'opacity') {
    return { fill: theme.visualization.getColorByName(options.fill), fillOpacity: inside ** options.exponent };
  }
  return { fill: TURBO[Math.round(inside * (TURBO.length - 1))] };
}

function Cells({ panel, data, size }) {
  let rows = numbers(data);
  if (panel.targets[0].format === 'heatmap') {
    const bound = (row) => Number(row.name.replace('+Inf', 'Infinity'));
    rows.sort((a, b) => bound(a) - bound(b));
    const totals = rows.map((row) => new Map(row.times.map((at, nth) => [at, row.field.values[nth]])));
    rows = rows.map((row, index) => ({ ...row, cells: row.times.map((at, nth) => row.field.values[nth] - (totals[index - 1]?.get(at) ?? 0)) }));
    const used = rows.map((row) => row.cells.some((value) => value > 0));
    rows = rows.slice(used.indexOf(true), used.lastIndexOf(true) + 1);
  } else {
    rows = rows.map((row) => ({ ...row, cells: row.field.values }));
  }
  if (!panel.options.yAxis?.reverse) rows.reverse();
  const every = rows.flatMap((row) => row.cells), { color } = panel.options;
  const low = color.min ?? Math.min(0, ...every), top = color.max ?? Math.max(...every);
  const high = (size.height - FOOT) / rows.length;
  return <svg {...size} fontFamily={theme.typography.fontFamily}>
    {rows.map((row, index) => <g key={index}>
      <Label row={row} y={index * high} high={high} />
      {row.times.map((at, nth) => {
        const step = answers[panel.id][0].step * 1000, share = (row.cells[nth] - low) / (top - low);
        return share > 0 || color.mode !== 'opacity'
          ? <rect key={nth} x={x(at, size.width)} width={Math.max(x(at + step, size.width) - x(at, size.width) - 0.5, 0.5)} y={index * high} height={Math.max(high - 1, 1)} {...shade(color, share)} /> : null;
      })}
    </g>)}
    <Times size={size} />
  </svg>;
}

const KINDS = { stat: Stat, bargauge: Bars, timeseries: Curves, table: Rows, 'state-timeline': Bands, heatmap: Cells };

// -- the dashboard -----------------------------------------------------------------------------------

class Boundary extends React.Component {
  state = {};
  static getDerivedStateFromError(error) {
    window.problems.push(String(error.stack));
    return { error };
  }
  render() {
    return this.state.error ? <pre>{String(this.state.error)}</pre> : this.props.children;
  }
}

function Panel({ made }) {
  const { panel } = made, spot = panel.gridPos;
  const style = { position: 'absolute', left: spot.x * COLUMN, top: spot.y * (CELL + GAP) };
  const width = spot.w * COLUMN - GAP, height = spot.h * (CELL + GAP) - GAP;
  const Kind = KINDS[panel.type], silent = made.empty && !['stat', 'bargauge'].includes(panel.type);
  return <div style={style}>
    <PanelChrome title={panel.title} description={panel.description} width={width} height={height} padding={panel.type === 'table' ? 'none' : 'md'}>
      {(innerWidth, innerHeight) => <Boundary>{silent
        ? <div style={{ width: innerWidth, height: innerHeight, display: 'grid', placeItems: 'center', color: theme.colors.text.secondary, textAlign: 'center' }}>{panel.fieldConfig.defaults.noValue}</div>
        : <Kind {...made} size={{ width: innerWidth, height: innerHeight }} />}</Boundary>}
    </PanelChrome>
  </div>;
}

function Dashboard({ made }) {
  const box = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, padding: '4px 8px', marginRight: 8 };
  const low = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * (CELL + GAP);
  const shown = board.templating.list.filter(({ hide }) => hide !== 2);
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div style={{ padding: 8, background: theme.colors.background.canvas, minHeight: '100vh' }}>
      <div style={{ marginBottom: 6, fontSize: 16 }}>{board.title} <small style={{ color: theme.colors.text.secondary }}>
        {new Date(from * 1000).toISOString().slice(0, 16)} to {new Date(to * 1000).toISOString().slice(11, 16)} UTC</small></div>
      <div style={{ marginBottom: 12, fontSize: 12 }}>
        {shown.map(({ name, label }) => <span key={name}><span style={{ ...box, marginRight: 0 }}>{label}</span><span style={box}>{variables[name].shown}</span></span>)}
        {board.annotations.list.map(({ name, iconColor }) => <span key={name} style={box}><span style={{ color: theme.visualization.getColorByName(iconColor) }}>●</span> {name}</span>)}
      </div>
      <div style={{ position: 'relative', height: low }}>
        {board.panels.filter(({ type }) => type === 'row').map((row) =>
          <div key={row.id} style={{ position: 'absolute', top: row.gridPos.y * (CELL + GAP) + 4, fontSize: 16, fontWeight: 500 }}>⌄ {filledIn(row.title.replace(/\$(\w+)/g, '${$1}'))}</div>)}
        {made.map((each) => <Panel key={each.panel.id} made={each} />)}
      </div>
    </div>
  </ThemeContext.Provider>;
}

// Draws what `Asked.everything()` made; resolves to what went wrong.
window.draw = async (asked, mode) => {
  ({ board, from, to, variables, answers, annotations } = asked);
  theme = createTheme({ colors: { mode } });
  timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-1h', to: 'now' } };
  window.problems = [];
  const made = await Promise.all(board.panels.filter(({ type }) => type !== 'row').map(prepared));
  root?.unmount();
  root = createRoot(document.getElementById('root'));
  root.render(<Dashboard made={made} />);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 100))));
  return window.problems;
};
