"use strict";
// Draws what the page's data says: panels of one mesh with linked cameras, and the curves. It decides nothing itself.

const data = JSON.parse(document.getElementById("data").textContent);
const arrayTypes = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
const clear = "rgba(0,0,0,0)";
const cameras = {
  x: { up: { x: 1, y: 0, z: 0 }, eye: { x: 0.85, y: 1.4, z: 1.2 } },
  y: { up: { x: 0, y: 1, z: 0 }, eye: { x: 1.2, y: 0.85, z: 1.4 } },
  z: { up: { x: 0, y: 0, z: 1 }, eye: { x: 1.2, y: -1.4, z: 0.85 } },
};

function decode([type, text]) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return new arrayTypes[type](bytes.buffer);
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// ---- meshes ----

const state = { stages: [], values: [], mesh: null, leader: undefined, camera: null };

function trace(mesh, geometry, values, scale) {
  const colour = { cmin: scale.low, cmax: scale.high, colorscale: scale.stops, showscale: false };
  const common = { x: geometry[0], y: geometry[1], z: geometry[2], hoverinfo: mesh.hover ? "none" : "skip" };
  if (mesh.drawn === "point") {
    const size = Math.max(1.5, Math.min(6, 250 / Math.sqrt(values.length)));
    return { type: "scatter3d", mode: "markers", ...common, marker: { ...colour, color: values, size, line: { width: 0 } } };
  }
  const eye = cameras[chosenUp()].eye;
  return {
    type: "mesh3d", ...common, ...colour, i: geometry[3], j: geometry[4], k: geometry[5],
    intensity: values, intensitymode: mesh.drawn === "triangle" ? "cell" : "vertex",
    lighting: { ambient: 0.7, diffuse: 0.5, specular: 0.08, roughness: 0.7, fresnel: 0.05,
                facenormalsepsilon: 0, vertexnormalsepsilon: 0 },
    lightposition: { x: 1e5 * eye.x, y: 1e5 * (eye.y + 1), z: 1e5 * eye.z },
  };
}

function sceneLayout([x, y, z], camera) {
  const axis = { visible: false, showspikes: false };
  return {
    autosize: true, margin: { l: 0, r: 0, t: 0, b: 0 }, paper_bgcolor: clear,
    scene: { xaxis: axis, yaxis: axis, zaxis: axis, aspectmode: "manual", aspectratio: { x: 1.8 * x, y: 1.8 * y, z: 1.8 * z }, dragmode: "orbit", bgcolor: clear, camera },
  };
}

function chosenUp() {
  return document.querySelector("input[name=up]:checked").value;
}

function scaleElement(scale, first, count) {
  const box = element("div", "scale");
  box.style.setProperty("--column", first + 1);
  box.style.setProperty("--span", count);
  if (scale.legend.length) {
    const legend = element("div", "legend");
    for (const [colour, name] of scale.legend) {
      const entry = element("span", "", name);
      const chip = element("i", "");
      chip.style.background = colour;
      entry.prepend(chip);
      legend.append(entry);
    }
    box.append(legend);
    return box;
  }
  const bar = element("div", "bar");
  bar.style.background = `linear-gradient(to right, ${scale.stops.map(([at, colour]) => `${colour} ${100 * at}%`)})`;
  const ticks = element("div", "ticks");
  ticks.append(...scale.ticks.map((tick) => element("span", "", tick)));
  box.append(bar, ticks, element("div", "what", scale.label));
  return box;
}

function showMesh(index) {
  const mesh = data.meshes[index];
  const camera = state.stages[0]?.layout.scene.camera ?? cameras[chosenUp()];
  const panels = document.getElementById("panels");
  state.stages.forEach((stage) => Plotly.purge(stage));
  panels.replaceChildren();
  panels.style.setProperty("--n", mesh.panels.length);
  const geometry = [...mesh.xyz, ...mesh.ijk].map(decode);
  state.mesh = mesh;
  state.values = mesh.panels.map((panel) => decode(panel.values));
  state.stages = mesh.panels.map((panel, at) => {
    const box = element("div", "panel");
    box.style.setProperty("--column", at + 1);
    const stage = element("div", "stage");
    box.append(element("h3", "", panel.title), stage);
    panels.append(box);
    const users = mesh.panels.filter((other) => other.scale === panel.scale).length;
    if (mesh.panels[at + 1]?.scale !== panel.scale) {
      panels.append(scaleElement(mesh.scales[panel.scale], at + 1 - users, users));
    }
    return stage;
  });
  document.getElementById("caption").textContent = mesh.caption;
  readOut(null);
  return Promise.all(state.stages.map((stage, at) => drawStage(stage, mesh, geometry, at, camera)));
}

async function drawStage(stage, mesh, geometry, at, camera) {
  const drawn = trace(mesh, geometry, state.values[at], mesh.scales[mesh.panels[at].scale]);
  await Plotly.newPlot(stage, [drawn], sceneLayout(mesh.aspect, camera), { displayModeBar: false, responsive: true });
  for (const event of ["plotly_relayouting", "plotly_relayout"]) {
    stage.on(event, (change) => change["scene.camera"] && link(stage, change["scene.camera"]));
  }
  stage.on("plotly_hover", (event) => readOut(event.points[0].pointNumber));
  stage.on("plotly_unhover", () => readOut(null));
}

// Moving the others makes them report a move as well: the one that the hand moves leads until they have followed.
async function link(leader, camera) {
  if (state.leader !== undefined && state.leader !== leader) return;
  const following = state.leader === leader;
  state.leader = leader;
  state.camera = camera;
  if (following) return;
  try {
    while (state.camera) {
      const next = { "scene.camera": state.camera };
      state.camera = null;
      await Promise.all(state.stages.filter((stage) => stage !== leader).map((stage) => Plotly.relayout(stage, next)));
    }
  } finally {
    state.leader = undefined;
  }
}

function readOut(point) {
  const { mesh, values } = state;
  const line = document.getElementById("readout");
  if (point === null) {
    line.textContent = mesh.hover ? "Point at a view to read the values there." : "";
    return;
  }
  const parts = mesh.panels.map(({ short, scale }, at) => {
    const names = mesh.scales[scale].names;
    const value = values[at][point];
    return `${short} ${names ? names[value] : Number(value.toPrecision(4))}`.trim();
  });
  line.textContent = `${mesh.drawn} ${point}: ${parts.join(" · ")}`;
}

function startMeshes() {
  const select = document.getElementById("mesh");
  select.append(...data.meshes.map((mesh) => element("option", "", mesh.label)));
  select.addEventListener("change", () => showMesh(select.selectedIndex));
  const reset = () => link(null, cameras[chosenUp()]);
  document.getElementById("reset").addEventListener("click", reset);
  document.querySelectorAll("input[name=up]").forEach((input) => input.addEventListener("change", reset));
  return showMesh(0);
}

// ---- curves ----

function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function chartTraces(chart) {
  const colours = { main: themeColour("accent"), second: themeColour("second"), faint: themeColour("faint"), limit: themeColour("second") };
  return chart.lines.map(({ name, x, y, role }) => ({
    type: "scatter", x, y, name, mode: role === "limit" || x.length > 30 ? "lines" : "lines+markers", connectgaps: true,
    line: { color: colours[role], width: role === "faint" ? 1.5 : 2.5, dash: role === "limit" ? "dash" : "solid" },
    showlegend: role !== "faint" && chart.lines.length > 1, hovertemplate: `${name}: %{y:.4g}<extra></extra>`,
  }));
}

function chartAxis({ title, log, ticks }) {
  const chosen = ticks.length ? { tickvals: ticks, ticktext: ticks.map(String) } : {};
  return {
    title: { text: title }, type: log ? "log" : "linear", zeroline: false, automargin: true,
    fixedrange: true, gridcolor: themeColour("rule"), linecolor: themeColour("rule"), ...chosen,
  };
}

function chartLayout(chart) {
  return {
    autosize: true, margin: { l: 10, r: 10, t: 10, b: 10 }, paper_bgcolor: clear, plot_bgcolor: clear, hovermode: "x unified",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: themeColour("soft") },
    hoverlabel: { bgcolor: themeColour("card"), bordercolor: themeColour("rule"), font: { color: themeColour("ink") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    xaxis: chartAxis(chart.x), yaxis: { ...chartAxis(chart.y), ...(chart.y.log ? {} : { rangemode: "tozero" }) },
  };
}

function drawCharts() {
  const groups = { training: data.training, projection: data.projection ? [data.projection] : [] };
  return Promise.all(Object.entries(groups).flatMap(([id, charts]) => charts.map((chart, at) => {
    const holder = document.querySelector(`#${id} .charts`);
    if (!holder.children[at]) {
      const box = element("div", "chart");
      if (chart.title) box.append(element("h3", "", chart.title));
      box.append(element("div", "plot"));
      holder.append(box);
    }
    const plot = holder.children[at].querySelector(".plot");
    return Plotly.react(plot, chartTraces(chart), chartLayout(chart), { displayModeBar: false, responsive: true });
  })));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
Promise.all([drawCharts(), data.meshes.length ? startMeshes() : null]).then(() => {
  document.documentElement.dataset.drawn = "yes";
});
