// Behaviour of the pages: theme, copy buttons, filters, charts, live regions. Without it every page still reads, links
// and submits; nothing here inserts HTML itself, htmx does, and only what this server answered.
(() => {
  "use strict";

  const root = document.documentElement;
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  const announce = (text) => {
    const status = document.getElementById("announce");
    if (status) status.textContent = text;
  };

  // htmx evaluates attributes such as hx-on; no page has them, and with these constructors none could.
  const refuse = function () {
    throw new EvalError("pages of this site evaluate nothing");
  };
  window.htmx?.registerExtension("no-eval", { init: (api) => { api.initSecurity(null, refuse, refuse); } });

  // Theme ------------------------------------------------------------------------------------------------------------

  const KEY = "kernelwright-theme";
  const THEMES = ["auto", "dark", "light"];

  const setUpTheme = () => {
    const button = document.querySelector("button.theme");
    if (!button) return;
    const show = () => { button.textContent = `Theme: ${root.dataset.theme ?? "auto"}`; };
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % THEMES.length];
      if (next === "auto") delete root.dataset.theme;
      else root.dataset.theme = next;
      try {
        if (next === "auto") localStorage.removeItem(KEY);
        else localStorage.setItem(KEY, next);
      } catch {
        // Storage is switched off: the choice holds for this page.
      }
      show();
      redrawCharts();
    });
    show();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redrawCharts());
  };

  // Copy buttons -----------------------------------------------------------------------------------------------------

  const copyText = async (source) => {
    const text = source.value ?? source.textContent;
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return;
    }
    // Browsers give pages over plain HTTP no clipboard: copy what is selected instead.
    const selection = getSelection();
    selection.selectAllChildren(source);
    if (!document.execCommand("copy")) throw new Error("copying was refused");
    selection.removeAllRanges();
  };

  const copyFrom = async (button) => {
    const source = document.querySelector(button.dataset.copy);
    if (!source) return;
    button.dataset.label ??= button.textContent;
    let said = "Copied";
    try {
      await copyText(source);
    } catch {
      said = "Select it"; // what could not be copied stays selected
      getSelection().selectAllChildren(source);
    }
    button.textContent = said;
    announce(said);
    setTimeout(() => { button.textContent = button.dataset.label; }, 2000);
  };

  // Filters, sorting, paging: the same URL as without scripts, but only the results are replaced ---------------------

  const resultsOf = (element) => {
    const named = element.closest?.("[data-results]")?.dataset.results ?? "#results";
    return document.querySelector(named) ?? document.querySelector("main");
  };

  const load = (url, target) => {
    if (url === location.pathname + location.search) return;
    if (!window.htmx || !target) {
      location.assign(url);
      return;
    }
    const select = target.id ? `#${CSS.escape(target.id)}` : "main";
    target.setAttribute("hx-sync", "replace"); // the last of several quick changes wins, here and in refreshPage
    htmx.ajax("GET", url, { source: target, target, select, swap: "outerHTML", push: url })
      .catch(() => location.assign(url));
  };

  let reset = new Set(); // names of filters that mean nothing once the one that was changed last has another value

  const submitFilters = (form) => {
    if (!form.reportValidity()) return;
    const url = new URL(form.getAttribute("action") || location.pathname, location.href);
    url.search = "";
    for (const [key, value] of new FormData(form)) {
      if (value !== "" && !reset.has(key)) url.searchParams.append(key, value);
    }
    load(url.pathname + url.search, resultsOf(form));
  };

  let typing = 0;
  let turning = false; // a page was turned: the next one is read from its top

  const setUpFilters = () => {
    const filtersOf = (event) => {
      const form = event.target.closest?.("form.filters:not([hx-get], [data-plain])"); // hx-get: htmx's own
      return form && (form.getAttribute("method") ?? "get").toLowerCase() === "get" ? form : null;
    };
    document.addEventListener("input", (event) => {
      reset = new Set(event.target.dataset?.resets?.split(" "));
    }, true);
    document.addEventListener("change", (event) => {
      const form = filtersOf(event);
      if (form) submitFilters(form);
    });
    document.addEventListener("input", (event) => {
      const form = event.target.type === "search" && filtersOf(event);
      if (!form) return;
      clearTimeout(typing);
      typing = setTimeout(() => submitFilters(form), 300);
    });
    document.addEventListener("submit", (event) => {
      const form = filtersOf(event);
      if (!form) return;
      event.preventDefault();
      submitFilters(form);
    });
    document.addEventListener("click", (event) => {
      const copy = event.target.closest("[data-copy]");
      if (copy) copyFrom(copy);
      const link = event.target.closest("th[aria-sort] a[href], .pager a[href]");
      const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
      if (!link || !plain || link.origin !== location.origin || link.pathname !== location.pathname) return;
      event.preventDefault();
      turning = link.closest(".pager") !== null;
      load(link.pathname + link.search, resultsOf(link));
    });
  };

  // Charts -----------------------------------------------------------------------------------------------------------

  const charts = new Map(); // element -> its uPlot
  const drawn = new WeakMap(); // element -> the data that it shows, as text
  const watcher = new ResizeObserver((entries) => {
    for (const { target } of entries) fitChart(target);
  });

  // A custom property as the browser resolves it here, in the theme that holds.
  const colours = (element, names) => {
    const probe = element.appendChild(document.createElement("span"));
    const found = names.map((name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    });
    probe.remove();
    return found;
  };

  const DASHES = [[], [7, 3], [2, 3], [10, 3, 2, 3], [4, 2], [12, 4], [1, 4], [5, 2, 1, 2]]; // as in site.css
  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const shown = (value) => (value == null ? "–" : format.format(value));

  const describe = (data) => {
    const parts = data.series.map(({ label, y }) => {
      const values = y.filter((value) => value != null);
      return values.length ? `${label}: ${shown(values[0])} to ${shown(values.at(-1))}` : `${label}: no values`;
    });
    return `${data.y_label} by ${data.x_label}. ${parts.join("; ")}.`;
  };

  // uPlot's logarithmic scales have no place for zero and below.
  const positive = (values) => values.map((value) => (value > 0 ? value : null));
  const seconds = (values) => values.map((value) => (typeof value === "string" ? Date.parse(value) / 1000 : value));

  // Times are UTC, as everywhere on these pages. A row: from this many seconds between marks, how each is written, and
  // what stands below it where the year, month, day, hour, minute or second changes; the 1 puts both together.
  const DAY = "\n{YYYY}-{MM}-{DD}";
  const TIMES = [
    [31536000, "{YYYY}", null, null, null, null, null, null, 1],
    [2419200, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
    [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", DAY, null, DAY, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", DAY, null, DAY, null, null, null, 1],
  ];
  const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((one) => [one, 2 * one, 5 * one]);
  const utc = (epoch) => uPlot.tzDate(new Date(epoch * 1000), "UTC");

  const axis = (label, text, line, font, more) => ({
    label, stroke: text, font, labelFont: font, labelSize: 20, labelGap: 2,
    grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 5 }, ...more,
  });

  const chartOptions = (element, data) => {
    const { kind, x, log = "" } = element.dataset;
    const hues = data.series.map((_, index) => `series-${index % 8}`);
    const [text, line, ...strokes] = colours(element, ["muted", "line", ...hues]);
    const font = `12px ${getComputedStyle(element).fontFamily}`;
    const paths = kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined;
    const incrs = data.x.every(Number.isInteger) ? WHOLE : undefined; // no marks between counts
    const ySize = (_, values) => 14 + 7 * Math.max(2, ...(values ?? []).map((value) => String(value ?? "").length));
    return {
      title: data.y_label, // above and not along the axis, where a long one has no room
      width: Math.max(element.clientWidth, 120),
      height: 200,
      tzDate: utc,
      scales: {
        x: { time: x === "time", distr: log.includes("x") ? 3 : 1 },
        y: { distr: log.includes("y") ? 3 : 1 },
      },
      axes: [
        axis(data.x_label, text, line, font, x === "time" ? { size: 42, space: 84, values: TIMES } : { size: 30, incrs }),
        axis(undefined, text, line, font, { size: ySize, labelSize: 0 }),
      ],
      series: [
        { label: data.x_label, value: x === "time" ? "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" : (_, value) => shown(value) },
        ...data.series.map(({ label }, index) => ({
          label, paths, stroke: strokes[index], width: 2, dash: DASHES[index % 8], spanGaps: kind === "steps",
          points: { size: 5, fill: strokes[index] }, value: (_, value) => shown(value),
        })),
      ],
      cursor: { points: { size: 7 } },
    };
  };

  const drawChart = (element) => {
    const data = JSON.parse(element.querySelector('script[type="application/json"]').textContent);
    const log = element.dataset.log ?? "";
    const x = log.includes("x") ? positive(data.x) : seconds(data.x);
    const keep = x.map((value, index) => (value == null ? -1 : index)).filter((index) => index >= 0);
    const column = (values) => keep.map((index) => values[index] ?? null);
    const ys = data.series.map(({ y }) => column(log.includes("y") ? positive(y) : y));
    const plot = new uPlot(chartOptions(element, data), [column(x), ...ys], element);
    if (!element.hasAttribute("aria-label")) {
      const canvas = plot.root.querySelector(".u-wrap");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", describe(data));
    }
    for (const part of all(".u-legend, .u-title", plot.root)) part.setAttribute("aria-hidden", "true"); // as the label says
    charts.set(element, plot);
    drawn.set(element, element.querySelector("script").textContent);
    fitChart(element);
    watcher.observe(element);
  };

  // Title, canvas and legend together take the height that the style sheet reserves, so that nothing below moves. uPlot
  // sets widths in a microtask, and until then the legend stands in a column.
  const fitChart = (element) => {
    const width = element.clientWidth;
    const plot = charts.get(element);
    if (!plot || !width) return;
    if (plot.width !== width) plot.setSize({ width, height: plot.height });
    queueMicrotask(() => {
      if (charts.get(element) !== plot) return;
      const reserved = parseFloat(getComputedStyle(element).minHeight) || 320;
      const beside = all(".u-legend, .u-title", plot.root).reduce((sum, part) => sum + part.offsetHeight, 0);
      const height = Math.max(120, Math.floor(reserved - beside));
      if (plot.height !== height) plot.setSize({ width, height });
    });
  };

  const dropChart = (element) => {
    watcher.unobserve(element);
    charts.get(element).destroy();
    charts.delete(element);
  };

  const drawCharts = () => {
    for (const element of charts.keys()) {
      const same = element.isConnected && element.querySelector(".uplot");
      if (!same || element.querySelector("script").textContent !== drawn.get(element)) dropChart(element);
    }
    if (!window.uPlot) return;
    for (const element of all(".chart")) {
      if (!charts.has(element)) drawChart(element);
    }
  };

  const redrawCharts = () => {
    for (const element of charts.keys()) dropChart(element);
    drawCharts();
  };

  // Live regions: the stream only says that something changed, and the server is asked for it ------------------------

  const LEAST_MS = 1000; // between two refreshes
  const SETTLED_MS = 2500; // the server may answer with what it knew two seconds ago
  const MOST_WAIT_MS = 30000; // between two tries to connect
  const streams = new Map(); // element -> what stops and starts it

  const showState = (element, state) => {
    const status = element.querySelector(".live") ?? document.querySelector(".live");
    if (!status) return;
    status.dataset.state = state;
    if (status.textContent !== state) status.textContent = state;
  };

  const refresher = (element) => {
    let timer = 0;
    let settling = 0;
    let last = 0;
    const refresh = () => {
      timer = 0;
      last = Date.now();
      const select = `#${CSS.escape(element.id)}`; // what does not change stays: focus, selection, open details
      htmx.ajax("GET", element.dataset.fragment, { source: element, target: element, select, swap: "outerMorph" })
        .catch(() => {}); // htmx has logged it, and the next change asks again
    };
    return () => {
      timer ||= setTimeout(refresh, Math.max(0, last + LEAST_MS - Date.now()));
      clearTimeout(settling);
      settling = setTimeout(refresh, SETTLED_MS);
    };
  };

  const follow = (element) => {
    const refresh = refresher(element);
    let source = null;
    let timer = 0;
    let failures = 0;
    let state = "";
    const show = (next) => { state = next; showState(element, state); };
    const stop = () => {
      clearTimeout(timer);
      source?.close();
      source = null;
    };
    const start = () => {
      if (source || state === "ended") return;
      source = new EventSource(element.dataset.events);
      source.addEventListener("open", () => {
        if (state) refresh(); // something may have been missed since the last connection
        failures = 0;
        show("live");
      });
      source.addEventListener("changed", refresh);
      source.addEventListener("end", () => {
        stop();
        show("ended");
        refresh();
      });
      source.addEventListener("error", () => {
        stop();
        show("reconnecting");
        timer = setTimeout(start, Math.min(MOST_WAIT_MS, LEAST_MS * 2 ** failures) * (1 + Math.random() / 4));
        failures += 1;
      });
    };
    start();
    return { start, stop, show: () => state && showState(element, state) };
  };

  const followAll = () => {
    for (const [element, stream] of streams) {
      if (element.isConnected) continue;
      stream.stop();
      streams.delete(element);
    }
    for (const element of all("[data-events][data-fragment]")) {
      if (streams.has(element)) streams.get(element).show(); // the swap may have replaced the status line
      else if (window.htmx) streams.set(element, follow(element));
    }
  };

  // A browser allows a server six connections in all its tabs: only those that are seen keep theirs.
  const pauseHidden = () => {
    for (const stream of streams.values()) {
      if (document.hidden) stream.stop();
      else stream.start();
    }
  };

  // What htmx swaps --------------------------------------------------------------------------------------------------

  // A region that scrolls is reached with the keyboard, and has a name.
  const SCROLLERS = ".scroll, .code, figure.plot, .copy > pre, .copy > code, pre.said";
  const markScrollers = () => {
    for (const element of all(SCROLLERS)) {
      const wide = element.scrollWidth > element.clientWidth + 1;
      if (wide || element.scrollHeight > element.clientHeight + 1) element.tabIndex = 0;
      else element.removeAttribute("tabindex");
      const caption = element.matches(".scroll") && element.querySelector("caption");
      if (!caption) continue;
      element.setAttribute("role", "region");
      element.setAttribute("aria-label", caption.textContent.trim());
    }
  };

  const refreshPage = () => {
    for (const form of all("form.filters[hx-get]:not([hx-sync])")) form.setAttribute("hx-sync", "replace");
    drawCharts();
    followAll();
    markScrollers();
  };

  // What a page looked like, as far as an answer cannot know: open details, and the control that had the focus.
  const remember = () => {
    const focused = document.activeElement;
    return {
      open: new Map(all("details[id]").map((details) => [details.id, details.open])),
      name: focused?.closest("form.filters") && !focused.id ? focused.name : "",
    };
  };

  const restore = ({ open, name }) => {
    for (const details of all("details[id]")) {
      if (open.has(details.id)) details.open = open.get(details.id);
    }
    if (name && document.activeElement === document.body) {
      document.querySelector(`form.filters [name="${CSS.escape(name)}"]`)?.focus({ preventScroll: true });
    }
  };

  // An answer that cannot take the place of results is shown as the page that it is.
  const leave = ({ push, request }) => {
    if (push) location.assign(request.action);
  };

  const setUpSwaps = () => {
    let before = remember();
    document.addEventListener("htmx:config:request", (event) => {
      const { sourceElement, request } = event.detail.ctx;
      if (!sourceElement.matches("form.filters")) return;
      for (const [key, value] of [...request.body]) {
        if (value === "" || reset.has(key)) request.body.delete(key);
      }
    });
    document.addEventListener("htmx:before:response", (event) => {
      if (event.detail.ctx.response.status < 400) return;
      event.preventDefault();
      leave(event.detail.ctx);
    });
    document.addEventListener("htmx:error", (event) => {
      if (event.detail.ctx) leave(event.detail.ctx);
    });
    document.addEventListener("htmx:before:swap", () => { before = remember(); });
    document.addEventListener("htmx:after:swap", (event) => {
      restore(before);
      refreshPage();
      const { push, target } = event.detail.ctx;
      if (!push) return;
      const results = document.getElementById(target?.id); // what took the target's place
      const caption = results?.querySelector("caption");
      if (caption) announce(caption.textContent.trim());
      if (turning && results && results.getBoundingClientRect().top < 0) results.scrollIntoView();
      turning = false;
    });
  };

  setUpTheme();
  setUpFilters();
  setUpSwaps();
  // Text is seen before charts are drawn. A page in the background paints nothing, and need not wait.
  if (document.hidden) refreshPage();
  else requestAnimationFrame(() => setTimeout(refreshPage));
  addEventListener("resize", markScrollers);
  document.addEventListener("toggle", markScrollers, true); // details were opened; the event does not bubble
  document.addEventListener("visibilitychange", pauseHidden);
})();
