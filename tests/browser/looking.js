// What the rules ask of a page. Runs in every page before its own content, where the page's policy does not reach.
window.draftproofLook = (() => {
  const all = selector => [...document.querySelectorAll(selector)];

  function name(e) {
    const id = e.id ? '#' + e.id : '', kind = e.getAttribute('class') ? '.' + e.getAttribute('class') : '';
    return `<${e.tagName.toLowerCase()}${id}${kind}> ${(e.textContent || '').trim().slice(0, 60)}`;
  }

  function seen(e) {
    const box = e.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && e.checkVisibility({visibilityProperty: true});
  }

  function scrolls(e) {
    const style = getComputedStyle(e);
    const can = (overflow, inner, outer) => ['auto', 'scroll'].includes(overflow) && inner > outer + 1;
    return can(style.overflowX, e.scrollWidth, e.clientWidth) || can(style.overflowY, e.scrollHeight, e.clientHeight);
  }

  const violations = [];
  document.addEventListener('securitypolicyviolation', e => violations.push(`${e.violatedDirective} ${e.blockedURI}`));

  function sections() {
    return all('main > section').map(e => {
      const title = e.querySelector('h2'), words = title ? title.textContent.trim() : '';
      const ok = !!title && seen(e) && seen(title) && e.textContent.trim() !== words;
      return {id: title ? title.id : '', title: words, ok};
    });
  }

  const links = () => all('nav a').map(e => ({href: e.getAttribute('href'), title: e.textContent.trim()}));

  // Whether it, or what lies around it, scrolls or cuts by itself.
  function contained(e) {
    for (; e && e !== document.body; e = e.parentElement)
      if (getComputedStyle(e).overflowX !== 'visible') return true;
    return false;
  }

  function tooWide(shrink) {
    const root = document.scrollingElement, wide = document.documentElement.clientWidth * shrink, found = [];
    if (root.scrollWidth > wide) found.push(`the page scrolls sideways: ${root.scrollWidth} of ${wide} px`);
    for (const e of [document.documentElement, document.body])
      if (getComputedStyle(e).overflowX !== 'visible') found.push(`what sticks out is cut off: ${name(e)}`);
    const check = (box, e, around) => {
      if (box.width && (box.right > wide + 1 || box.left < -1) && !contained(around))
        found.push(`from ${Math.round(box.left)} to ${Math.round(box.right)} of ${wide} px: ${name(e)}`);
    };
    all('body *').forEach(e => check(e.getBoundingClientRect(), e, e.parentElement));
    // Words may stick out of a box that does not.
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (words.nextNode()) {
      range.selectNodeContents(words.currentNode);
      check(range.getBoundingClientRect(), words.currentNode.parentElement, words.currentNode.parentElement);
    }
    return found;
  }

  function cutLabels() {
    return all('svg text').filter(e => {
      if (!seen(e)) return false;
      const text = e.getBoundingClientRect(), frame = e.ownerSVGElement.getBoundingClientRect();
      return text.left < frame.left - 2 || text.right > frame.right + 2 || text.top < frame.top - 2 ||
        text.bottom > frame.bottom + 2;
    }).map(name);
  }

  // Numbers all that the tab key must reach, in the order of the page, and goes back to its top.
  function markStops() {
    const can = 'a[href], button, input, select, textarea, summary, [tabindex]';
    const bare = e => scrolls(e) && !e.querySelector(can); // else it scrolls along with the focus
    const stops = all('body *').filter(e => seen(e) && (e.matches(can) || bare(e)));
    stops.forEach((e, number) => { e.dataset.stop = number; });
    document.activeElement.blur();
    window.scrollTo(0, 0);
    return stops.map(name);
  }

  function focused() {
    const e = document.activeElement;
    if (!e || e === document.body || e === document.documentElement) return null;
    const style = getComputedStyle(e), box = e.getBoundingClientRect();
    const solid = !/^rgba\(.*, 0\)$/.test(style.outlineColor);
    const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 && solid;
    return {
      stop: e.dataset.stop === undefined ? null : Number(e.dataset.stop),
      name: name(e),
      ring: ring || style.boxShadow !== 'none',
      seen: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    };
  }

  function markLinks() {
    const found = all('a[href^="#"]').filter(seen);
    found.forEach((e, number) => { e.dataset.link = number; });
    return found.map(e => e.getAttribute('href'));
  }

  const focusLink = number => document.querySelector(`[data-link="${number}"]`).focus();

  function landed(href) {
    const e = document.getElementById(decodeURIComponent(href.slice(1)));
    if (!e) return 'leads nowhere';
    if (location.hash !== href) return 'was not followed';
    if (!seen(e)) return 'leads to what cannot be seen';
    const box = e.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight ? '' : 'does not move there';
  }

  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});

  function rgba(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  }

  // Relative luminance and contrast as in WCAG 2.2.
  function luminance([red, green, blue]) {
    const linear = [red, green, blue].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }

  function behind(e) {
    for (let p = e; p; p = p.parentElement) {
      const colour = rgba(getComputedStyle(p).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  }

  function contrast(e) {
    const ink = luminance(rgba(getComputedStyle(e).fill)), paper = luminance(behind(e.ownerSVGElement.parentElement));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }

  function faintLabels() {
    return all('svg text').filter(seen).map(e => [contrast(e), e]).filter(([ratio]) => ratio < 4.5).map(
      ([ratio, e]) => `contrast ${ratio.toFixed(2)} of 4.5: ${name(e)}`);
  }

  function folded() {
    return all('details:not([open])').flatMap(e => [...e.children].filter(part =>
      part.tagName !== 'SUMMARY' && part.textContent.trim() &&
      (!part.checkVisibility({contentVisibilityAuto: true}) || !part.getBoundingClientRect().height))).map(name);
  }

  return {violations, sections, links, tooWide, cutLabels, markStops, focused, markLinks, focusLink, landed, faintLabels,
    folded};
})();
